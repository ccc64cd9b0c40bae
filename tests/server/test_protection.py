"""The dashboard against foreign sites, foreign names, foreign frames and users without the right."""

from hashlib import sha256
from pathlib import Path

import pytest

from jqueue import DirectQueue, InMemoryStorage, LocalFileSystemStorage
from jqueue.domain.errors import InvalidJobError
from jqueue.server import dashboard, page
from jqueue.server.access import KnownTokens, Role, TokenFile, Tokens
from jqueue.server.actions import ACTIONS
from tests.server.asgi import PROOF, act, get, post, request

TOKEN, GUEST = "operator-token-000000", "viewer-token-00000000"


@pytest.fixture
def guarded(queue):
    tokens = Tokens(KnownTokens({TOKEN: Role.OPERATOR, GUEST: Role.VIEWER}), "jqueue-8000", "secret")
    return dashboard(queue, authorize=tokens, hosts=("queue.example.org",))


async def sign_in(app, token):
    answer = await post(app, "/api/session", {"token": token})
    return {"cookie": answer.headers["set-cookie"].partition(";")[0]}


async def test_without_a_token_there_is_a_page_and_no_data(guarded):
    assert 200 == (await get(guarded, "/")).status
    for target in ("overview", "jobs", "dead", "timeline", "job?id=a", "job/payload?id=a", "job/events?id=a"):
        assert 401 == (await get(guarded, f"/api/{target}")).status
    assert 401 == (await act(guarded, "cancel", {"id": "a"})).status


async def test_the_token_is_exchanged_for_a_cookie_that_no_script_and_no_other_site_can_use(guarded):
    answer = await post(guarded, "/api/session", {"token": TOKEN})
    cookie = answer.headers["set-cookie"]
    assert {"httponly", "samesite=strict", "path=/"} <= {part.strip().lower() for part in cookie.split(";")}
    assert TOKEN not in cookie
    values = (await get(guarded, "/api/overview", headers={"cookie": cookie.partition(";")[0]})).values
    assert ("operator", True) == (values["role"], values["session"])
    dropped = (await request(guarded, "DELETE", "/api/session", headers=PROOF)).headers["set-cookie"]
    assert dropped.startswith('jqueue-8000=""')
    assert "Max-Age=0" in dropped
    assert 403 == (await request(guarded, "DELETE", "/api/session")).status  # another site could send it


async def test_a_user_signs_in_once_for_several_queues_and_no_page_reads_another_queue(queue):
    other = DirectQueue(InMemoryStorage())
    app = dashboard(
        queue, authorize=Tokens(KnownTokens({TOKEN: Role.OPERATOR}), "jqueue-8000", "secret"), others=[other]
    )
    await queue.enqueue("mail", b"")
    assert 401 == (await get(app, "/queues/1/api/overview")).status
    assert 403 == (await request(app, "POST", "/queues/1/api/actions/enqueue", body={"entrypoint": "x"})).status
    for start in ("", "/queues/1"):
        answer = await post(app, f"{start}/api/session", {"token": TOKEN})
        cookie = {"cookie": answer.headers["set-cookie"].partition(";")[0]}
        assert "path=/" in [part.strip().lower() for part in answer.headers["set-cookie"].split(";")]
        figures = [(await get(app, f"{path}/api/overview", headers=cookie)).values for path in ("", "/queues/1")]
        assert [(0, 1), (1, 0)] == [(each["place"], each["ready"]) for each in figures]
    assert 404 == (await get(app, "/queues/2/api/overview", headers=cookie)).status
    answer = await post(app, "/queues/1/api/session", {"token": TOKEN}, root_path="/prefix")
    assert "path=/prefix" in [part.strip().lower() for part in answer.headers["set-cookie"].split(";")]


async def test_the_cookie_is_secure_behind_a_proxy_with_tls_and_a_probe_needs_no_token(guarded):
    for origin, secure in (("https://queue.example.org", True), ("http://127.0.0.1:8000", False)):
        answer = await post(guarded, "/api/session", {"token": TOKEN}, headers={"origin": origin})
        assert secure == ("secure" in answer.headers["set-cookie"].lower())
    assert 200 == (await get(guarded, "/healthz")).status


async def test_a_wrong_token_gets_no_cookie_and_a_cookie_cannot_be_made_up(guarded):
    for token in ("", "\ud800" * 20, TOKEN[:-1], TOKEN + "0", None, 7):
        answer = await post(guarded, "/api/session", {"token": token})
        assert (403, False) == (answer.status, "set-cookie" in answer.headers)
    in_the_file = sha256(TOKEN.encode()).hexdigest()
    for value in ("8000=", f"8000={TOKEN}", f"8000={in_the_file}", "8000=é", "1=x"):
        cookie = f"jqueue-{value}"
        assert 401 == (await get(guarded, "/api/overview", headers={"cookie": cookie})).status


async def test_only_the_names_of_this_host_are_accepted(guarded):
    for host in ("evil.example", "queue.example.org.evil.example", "", "127.0.0.1.evil.example", "[", "x@["):
        assert 421 == (await get(guarded, "/", host=host)).status
    for host in ("127.0.0.1:8000", "localhost:8000", "[::1]:8000", "QUEUE.example.org."):
        assert 200 == (await get(guarded, "/", host=host)).status


@pytest.mark.parametrize(
    "headers",
    [
        {"x-jqueue-dashboard": None},
        {"origin": "https://evil.example"},
        {"sec-fetch-site": "cross-site"},
    ],
)
async def test_a_change_that_another_site_sends_is_refused(queue, app, headers):
    job = await queue.enqueue("mail", b"")
    shown = (await get(app, f"/api/job?id={job.id}")).values
    body = {"id": job.id, "seen": shown["seen"]}
    assert 403 == (await act(app, "cancel", body, headers=headers)).status
    assert await queue.find(job.id) is not None
    good = {"origin": "http://127.0.0.1:8000", "sec-fetch-site": "same-origin"}
    assert 200 == (await act(app, "cancel", body, headers=good)).status


@pytest.mark.parametrize(
    ("origin", "host", "passes"),
    [
        ("https://queue.example.org", "127.0.0.1:8470", True),  # nginx, as it is by default
        ("https://queue.example.org", "queue.example.org", True),  # with Host $host
        ("https://queue.example.org", "queue.example.org:443", True),  # with $host:$server_port
        ("https://QUEUE.example.org:8443", "127.0.0.1", True),
        ("http://127.0.0.1", "127.0.0.1:80", True),
        ("http://127.0.0.1", "127.0.0.1:443", False),
        ("https://other.example.org", "queue.example.org", False),
        ("https://queue.example.org.evil.example", "127.0.0.1:8470", False),
        ("https://queue.example.org@evil.example", "127.0.0.1:8470", False),
        ("https://[", "127.0.0.1:8470", False),
        ("ftp://127.0.0.1:8470", "127.0.0.1:8470", False),
    ],
)
async def test_the_origin_of_an_allowed_host_passes_behind_a_proxy_and_a_refusal_says_what_was_compared(
    guarded, origin, host, passes
):
    headers = {"origin": origin, "sec-fetch-site": "same-origin"}
    answer = await post(guarded, "/api/session", {"token": TOKEN}, headers=headers, host=host)
    assert (200 if passes else 403) == answer.status
    assert passes or {origin + ",", host + "."} <= set(answer.values["detail"].split())


@pytest.mark.parametrize("target", ["/", "/app.js", "/api/overview", "/nothing"])
async def test_every_answer_has_the_protecting_headers(queue, app, target):
    headers = (await get(app, target)).headers
    policy = headers["content-security-policy"]
    for part in (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    ):
        assert part in policy
    assert "unsafe" not in policy
    assert ("DENY", "nosniff", "no-referrer", "no-store") == tuple(
        headers[name] for name in ("x-frame-options", "x-content-type-options", "referrer-policy", "cache-control")
    )


@pytest.mark.parametrize("target", ["/../access.py", "/__init__.py", "/..%2fapp.py", "//etc/passwd"])
async def test_only_the_files_of_the_page_are_served(app, target):
    assert 404 == (await get(app, target)).status


async def test_the_user_of_a_mounted_dashboard_is_whoever_the_application_says(path):
    async def authorize(request):
        return {"ada": "operator", "bob": "viewer"}.get(request.headers.get("x-user"))

    async with DirectQueue(LocalFileSystemStorage(path)) as queue:
        await queue.enqueue("mail", b"")
        app = dashboard(queue, authorize=authorize)
        roles = [await get(app, "/api/overview", headers={"x-user": user}) for user in ("ada", "bob", "eve")]
        assert [200, 200, 403] == [answer.status for answer in roles]
        assert ["operator", "viewer"] == [answer.values["role"] for answer in roles[:2]]
        assert [ACTIONS.keys(), set()] == [answer.values["actions"].keys() for answer in roles[:2]]
        for action in ACTIONS:
            assert 403 == (await act(app, action, {}, headers={"x-user": "bob"})).status
        assert 403 == (await post(app, "/api/session", {"token": "x"}, headers={"x-user": "ada"})).status


async def test_a_token_file_lets_in_viewers_and_operators_and_a_wrong_line_is_refused_without_its_words(
    queue, tmp_path
):
    file = tmp_path / "tokens"
    for role in Role:
        TokenFile.add(file, role, "ada", f"token-of-a-{role}")
    app = dashboard(queue, authorize=Tokens(TokenFile(file), "jqueue-8000", "secret"))
    answers = {role: await post(app, "/api/session", {"token": f"token-of-a-{role}"}) for role in Role}
    assert {Role.VIEWER, Role.OPERATOR} == {role for role, answer in answers.items() if answer.status == 200}
    for text, reason in {
        "": "no tokens",
        f"admin {'0' * 64} ada": "line 1",
        "# x\n\nviewer hunter2hunter2hunter2 ada": "line 3",
        f"viewer {'0' * 64}": "line 1",
    }.items():
        file.write_text(text)
        with pytest.raises(InvalidJobError, match=reason) as refused:
            TokenFile(file)
        assert "hunter2" not in str(refused.value)


def test_no_script_reads_text_as_markup_or_as_a_program():
    for script in Path(page.__file__).parent.glob("*.js"):
        text = script.read_text(encoding="utf-8")
        for danger in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
            assert danger not in text, script
