"""Files of earlier versions of paco: they load, or paco rejects them with a remedy. ``written`` contains such files."""
