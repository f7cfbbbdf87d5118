import csv
import json
from pathlib import Path

with Path("clean.csv").open(newline="") as source:
    amounts = [int(row["amount"]) for row in csv.DictReader(source)]
Path("summary.json").write_text(json.dumps({"rows": len(amounts), "total": sum(amounts)}))
