"""Pictures from elsewhere: only from listed places, by whatever name they are asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from paco_core.config.params import ParamsError, load, parse
from paco_core.io.shards import encode_png
from paco_core.serving.engines import vllm
from paco_core.serving.engines.media import Media
from paco_core.serving.engines.pictures import DecodedPictures
from paco_core.serving.protocol import RequestError
from tests.support.loopback import Loopback, Quiet
from tests.support.serving_fakes import NAME, FakeModel, panel, served
from tests.unit.serving.test_app import GOOD, post, request


class Site(Loopback):
    """Serves one picture at every path below ``/pictures/``, and sends visitors of ``/pictures/away`` elsewhere."""

    def __init__(self, picture: bytes) -> None:
        asked: list[str] = []
        self.paths = asked

        class Handler(Quiet):
            def do_GET(self) -> None:
                asked.append(self.path)
                if self.path == "/pictures/away":
                    self.reply(302, b"", {"Location": "/secret.png"})
                else:
                    self.reply(200, picture)

        super().__init__(Handler)


def test_files_of_a_listed_folder_and_no_others(tmp_path: Path) -> None:
    allowed, secret = tmp_path / "pictures", tmp_path / "secret.png"
    allowed.mkdir()
    for path in (allowed / "a.png", secret):
        path.write_bytes(encode_png(panel(1)))
    (allowed / "link.png").symlink_to(secret)
    media = Media([f"file://{allowed}/"])
    assert media.read(f"file://{allowed}/a.png") == encode_png(panel(1))
    for name in ("../secret.png", "%2e%2e/secret.png", "link.png"):
        with pytest.raises(RequestError, match="allowed_media"):
            media.read(f"file://{allowed}/{name}")
    with pytest.raises(RequestError, match="cannot be read"):
        media.read(f"file://{allowed}/missing.png")
    with pytest.raises(RequestError, match="allowed_media"):
        Media().read(f"file://{allowed}/a.png")


def test_listed_sites_and_no_others_and_no_redirects() -> None:
    with Site(encode_png(panel(2))) as site:
        media = Media([f"{site.url}/pictures/"])
        assert media.read(f"{site.url}/pictures/a.png") == encode_png(panel(2))
        for path in ("/secret.png", "/pictures/../secret.png", "/pictures/%2e%2e/secret.png", "/picturesque/a.png"):
            with pytest.raises(RequestError, match="allowed_media"):
                media.read(site.url + path)
        with pytest.raises(RequestError, match="302"):
            media.read(f"{site.url}/pictures/away")
        assert site.paths == ["/pictures/a.png", "/pictures/away"]
    with pytest.raises(RequestError, match="does not answer"):
        media.read(f"{site.url}/pictures/a.png")


def test_the_server_scores_a_listed_picture_and_refuses_the_rest(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encode_png(panel(7)))
    model = FakeModel()
    with served(model, pictures=DecodedPictures(Media([f"file://{tmp_path}/"]))) as (url, _):
        assert post(url, request([GOOD, f"file://{tmp_path}/a.png"], model=NAME))[0] == 200
        assert post(url, request([GOOD, "file:///etc/hostname"], model=NAME))[0] == 400
    assert model.asks[0].query.second.tobytes() == panel(7).tobytes()


def test_vllm_is_told_where_pictures_may_come_from(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "python").touch()
    serving = load(repository / "params.yaml").serving.model_copy(update={"python": "python"})

    def line(*places: str) -> str:
        given = serving.model_copy(update={"allowed_media": list(places)})
        return " ".join(vllm.command("m", "n", "127.0.0.1", 1, given, tmp_path))

    assert "--allowed-media-domains nowhere.invalid" in line() and "--allowed-local-media-path" not in line()
    told = line("https://host.example/pictures/", f"file://{tmp_path}/")
    assert f"--allowed-media-domains host.example --allowed-local-media-path {tmp_path}" in told
    with pytest.raises(Exception, match="one folder"):
        line("file:///a/", "file:///b/")


@pytest.mark.parametrize("place", ["/pictures/", "ftp://host/a/", "https://host", "https://user@host/"])
def test_places_that_are_none_are_refused_in_the_parameters(repository: Path, place: str) -> None:
    import yaml

    tree = yaml.safe_load((repository / "params.yaml").read_text())
    tree["execution"]["serving"]["allowed_media"] = [place]
    with pytest.raises(ParamsError, match="allowed_media"):
        parse(tree)
