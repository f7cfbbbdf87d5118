import csv
from pathlib import Path

minimum = int(Path("params.yaml").read_text().split()[-1])
with Path("sales.csv").open(newline="") as source, Path("clean.csv").open("w", newline="") as target:
    rows = csv.DictReader(source)
    writer = csv.DictWriter(target, rows.fieldnames)
    writer.writeheader()
    writer.writerows(row for row in rows if int(row["amount"]) >= minimum)
