"""Previews for the page of an asset: tables, images, columns, and the metrics that come first."""
