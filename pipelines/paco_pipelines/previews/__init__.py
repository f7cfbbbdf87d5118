"""What the page of an asset shows: tables, pictures, columns and the figures that come first."""
