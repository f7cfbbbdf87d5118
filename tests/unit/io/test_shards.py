from __future__ import annotations

import hashlib
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from PIL import Image

from paco_core.data.pairs.leakage import picture_md5s
from paco_core.data.records.panels import PanelStore
from paco_core.io import shards
from paco_core.io.files import DataError


def pictures(count: int) -> dict[str, bytes]:
    return {f"p{n}": shards.encode_png(Image.new("RGB", (4 + n, 5), (n, 0, 0))) for n in range(count)}


def test_the_order_of_rows_does_not_change_a_byte(tmp_path: Path) -> None:
    images = pictures(5)
    rows = [{"id": name, "seed": n} for n, name in enumerate(images)]
    shards.write_shard(tmp_path / "a", rows, images)
    random.Random(0).shuffle(rows)
    shards.write_shard(tmp_path / "b", rows, images)
    for name in (shards.TAR, shards.INDEX):
        md5 = {hashlib.md5((tmp_path / side / name).read_bytes()).hexdigest() for side in "ab"}
        assert len(md5) == 1, name


def test_pictures_come_back_by_id_from_any_shard(tmp_path: Path) -> None:
    images = pictures(4)
    shards.write_shard(tmp_path / "0", [{"id": "p0"}, {"id": "p2"}], {k: images[k] for k in ("p0", "p2")})
    shards.write_shard(tmp_path / "1", [{"id": "p1"}, {"id": "p3"}], {k: images[k] for k in ("p1", "p3")})
    shutil.copytree(tmp_path / "1", tmp_path / ".paco-killed.part" / "1")  # as a killed run leaves it: not read
    reader = shards.ShardReader.below(tmp_path)
    for n in range(4):
        assert reader.read(f"p{n}").size == (4 + n, 5)
    with pytest.raises(DataError, match="picture p9"):
        reader.read("p9")
    shards.write_shard(tmp_path / "2", [{"id": "p0"}], images)
    with pytest.raises(DataError, match="p0"):
        _ = shards.ShardReader.below(tmp_path).index


def test_only_shards_that_dvc_yaml_declares_are_read(tmp_path: Path) -> None:
    """A shard that a larger `grid_shards` left in the folder holds images of earlier parameters."""
    images = pictures(3)
    for n in range(3):
        shards.write_shard(tmp_path / f"data/grids/shard-{n}", [{"id": f"p{n}"}], {f"p{n}": images[f"p{n}"]})
    stage = {"matrix": {"shard": [0, 1]}, "cmd": "x", "outs": ["data/grids/shard-${item.shard}"]}
    (tmp_path / "dvc.yaml").write_text(json.dumps({"stages": {"grids": stage}}))
    assert list(shards.ShardReader.below(tmp_path / "data/grids").index.index) == ["p0", "p1"]
    for n in range(2):
        shutil.rmtree(tmp_path / f"data/grids/shard-{n}")
    with pytest.raises(DataError, match="dvc repro grids"):
        shards.ShardReader.below(tmp_path / "data/grids")


@pytest.mark.parametrize("name", ["../up", "x" * 97, 3])
def test_rows_and_pictures_must_agree(tmp_path: Path, name: Any) -> None:
    for rows, images in (([{"id": "a"}], {}), ([{"id": "a"}] * 2, {"a": b""}), ([{"id": name}], {name: b""})):
        with pytest.raises(DataError):
            shards.write_shard(tmp_path / "0", rows, images)
    assert not (tmp_path / "0").exists()


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"offset": [-5, 512]}, "column 'offset'"),
        ({"offset": [float("nan"), 512.0]}, "column 'offset'"),
        ({"size": [-1, 5]}, "column 'size'"),
        ({"size": [1 << 40, 5]}, "column 'size'"),
        ({"id": ["../p0", "p1"]}, "row 0"),
        ({"id": [None, "p1"]}, "row 0"),
        ({"offset": None}, "column 'offset'"),
    ],
)
def test_a_damaged_index_is_one_error_that_names_it(tmp_path: Path, change: dict[str, Any], place: str) -> None:
    shards.write_shard(tmp_path / "0", [{"id": "p0"}, {"id": "p1"}], pictures(2))
    index = pd.read_parquet(tmp_path / "0" / shards.INDEX)
    ((column, values),) = change.items()
    index = index.drop(columns=column) if values is None else index.assign(**{column: values})
    index.to_parquet(tmp_path / "0" / shards.INDEX)
    with pytest.raises(DataError, match=rf"0/index\.parquet: {place}"):
        shards.ShardReader.below(tmp_path).read("p1")


def test_a_shard_that_is_cut_off_or_whose_index_names_another_place_says_which_picture(tmp_path: Path) -> None:
    images = pictures(3)
    shards.write_shard(tmp_path / "0", [{"id": n} for n in images], images)
    tar, index = tmp_path / "0" / shards.TAR, pd.read_parquet(tmp_path / "0" / shards.INDEX)
    for offset in (513, 1 << 61):
        index.assign(offset=offset).to_parquet(tmp_path / "0" / shards.INDEX)
        with pytest.raises(DataError, match=r"images\.tar.*p1"):
            shards.ShardReader.below(tmp_path).read("p1")
    index.to_parquet(tmp_path / "0" / shards.INDEX)
    reader, last = shards.ShardReader.below(tmp_path), index.iloc[2]
    tar.write_bytes(tar.read_bytes()[: last["offset"] + last["size"]])
    assert reader.read("p2").size == (6, 5)
    tar.write_bytes(tar.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"images\.tar: cut off: picture p2 .*dvc repro grids"):
        reader.read("p2")


def test_an_index_of_grids_says_what_it_lacks(tmp_path: Path) -> None:
    shards.write_shard(tmp_path / "0", [{"id": "p0"}], pictures(1))
    with pytest.raises(DataError, match="prompt_id"):
        PanelStore.below(tmp_path).panels("p0")
    with pytest.raises(DataError, match="md5"):
        picture_md5s(shards.ShardReader.below(tmp_path).index)
