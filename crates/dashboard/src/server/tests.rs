//! Tests of the server: access, answers, hostile requests.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

use super::*;

const TOKEN: &str = "0123456789abcdef";

/// A server of a test; stops when dropped.
struct TestServer {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl TestServer {
    fn start(folder: &Path) -> Self {
        let library = Arc::new(RunLibrary::open(folder).unwrap());
        let settings = ServerSettings {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            token: AccessToken::parse(TOKEN).unwrap(),
        };
        let (ready, started) = channel();
        let stop = Arc::<AtomicBool>::default();
        let of_thread = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let ready = |address, url: &str| {
                assert!(url.ends_with(&format!("/?token={TOKEN}")));
                ready.send(address).unwrap();
            };
            serve(library, settings, ready, || {
                of_thread.load(Ordering::SeqCst)
            })
            .unwrap();
        });
        Self {
            address: started.recv().unwrap(),
            stop,
            thread: Some(thread),
        }
    }

    /// Sends text and returns the whole answer.
    fn send(&self, text: &str) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        // The server may close the connection before it has read everything.
        let _ = stream.write_all(text.as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    fn get(&self, path: &str, headers: &str) -> String {
        self.send(&format!(
            "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n"
        ))
    }

    fn get_with_token(&self, path: &str) -> String {
        self.get(path, &format!("Authorization: Bearer {TOKEN}\r\n"))
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.take().unwrap().join().unwrap();
    }
}

fn runs() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("one & <b>");
    std::fs::create_dir(&folder).unwrap();
    let mut text = String::new();
    for step in 0..100 {
        text.push_str(&format!(
            "{{\"t\":{step}.5,\"event\":\"step_committed\",\"step\":{step},\"epoch\":0,\"generation\":1,\"loss\":null,\
             \"samples\":64,\"learning_rate\":0.1,\"gradient_norm\":1.0,\"duration_s\":0.5}}\n"
        ));
    }
    text.push_str(
        "{\"t\":200.0,\"event\":\"notice\",\"rank\":3,\"message\":\"lost https://user:hidden@host/\"}\n",
    );
    std::fs::write(folder.join("events.jsonl"), text).unwrap();
    std::fs::write(
        folder.join("run.toml"),
        "[data]\ntoken = 'hidden'\nsize = 3\n",
    )
    .unwrap();
    std::fs::write(dir.path().join("events.toml"), "secret file").unwrap();
    dir
}

const RUN: &str = "id=one+%26+%3Cb%3E";

/// Waits until the whole event file was read.
fn run_answer(server: &TestServer, query: &str) -> String {
    for _ in 0..3_000 {
        let answer = server.get_with_token(&format!("/api/run?{RUN}{query}"));
        if answer.contains("\"read_share\":1.0") {
            return answer;
        }
    }
    panic!("the run is never read");
}

#[test]
fn everything_about_runs_requires_the_token() {
    let dir = runs();
    let server = TestServer::start(dir.path());
    let paths = [
        "/api/runs",
        "/api/run",
        "/api/settings",
        "/api/logs",
        "/api/stream",
        "/",
    ];
    for path in paths {
        for headers in [
            "",
            "Cookie: ronde_dashboard=0123456789abcdef\r\n",
            "Authorization: Bearer 0123456789abcdeF\r\n",
            "Authorization: 0123456789abcdef\r\n",
        ] {
            let answer = server.get(path, headers);
            assert!(
                answer.starts_with("HTTP/1.1 401"),
                "{path} {headers}: {answer}"
            );
            assert!(!answer.contains("one &"), "{answer}");
        }
    }
    let wrong = server.get("/?token=0123456789abcdeF", "");
    assert!(wrong.contains("This token is not valid") && !wrong.contains("set-cookie"));
    let entered = server.get(&format!("/?token={TOKEN}"), "");
    let port = server.address.port();
    let cookie = format!("ronde_dashboard_{port}={TOKEN}");
    assert!(
        entered.contains(&format!("{cookie}; HttpOnly; SameSite=Strict")),
        "{entered}"
    );
    let page = server.get("/", &format!("Cookie: a=b; {cookie}\r\n"));
    assert!(
        page.contains("<main") && page.contains("default-src 'none'"),
        "{page}"
    );
    assert!(page.contains("x-content-type-options: nosniff"));
    for (name, start) in [
        ("app.js", "HTTP/1.1 200"),
        ("..%2fCargo.toml", "HTTP/1.1 404"),
    ] {
        let answer = server.get(&format!("/assets/{name}"), "");
        assert!(answer.starts_with(start), "{name}: {answer}");
    }
}

#[test]
fn answers_have_the_run_without_secrets() {
    let dir = runs();
    let server = TestServer::start(dir.path());
    let list = server.get_with_token("/api/runs");
    assert!(
        list.contains("\"id\":\"one & <b>\"") && list.contains("\"step\":100"),
        "{list}"
    );
    let run = run_answer(&server, "&points=16&detail=1");
    assert!(
        run.contains("\"width\":8") && run.contains("\"mean\":[null,"),
        "{run}"
    );
    assert!(run.contains("\"members\":[]"), "{run}");
    let part = run_answer(&server, "&points=16&from=90&width=8");
    assert!(part.contains("\"from\":88,\"step\":[88,96]"), "{part}");
    let settings = server.get_with_token(&format!("/api/settings?{RUN}"));
    assert!(settings.contains("\"data.size\":\"3\""), "{settings}");
    let logs = server.get_with_token(&format!("/api/logs?{RUN}&rank=3&text=LOST"));
    assert!(logs.contains("lost https://•••@host/"), "{logs}");
    for answer in [list, run, settings, logs] {
        assert!(!answer.contains("hidden"), "{answer}");
    }
}

#[test]
fn hostile_requests_are_refused() {
    let dir = runs();
    let server = TestServer::start(dir.path());
    for id in ["..", "../one", "%2e%2e%2f", "one%00", "", "/etc"] {
        for path in ["run", "settings", "logs"] {
            let answer = server.get_with_token(&format!("/api/{path}?id={id}"));
            assert!(answer.starts_with("HTTP/1.1 404"), "{id}: {answer}");
        }
    }
    let answer = server.get_with_token("/api/run");
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    run_answer(&server, "&points=99999999999999999999&from=-1&width=0");
    run_answer(&server, "&points=NaN&from=18446744073709551615&width=1");
    server.send("\0\0\0\r\n\r\n");
    let long = format!("GET /?{} HTTP/1.1\r\n\r\n", "a".repeat(1 << 20));
    assert!(!server.send(&long).starts_with("HTTP/1.1 200"));
    assert!(
        server
            .get_with_token("/api/runs")
            .starts_with("HTTP/1.1 200"),
        "it still answers"
    );
}

#[test]
fn a_client_that_sends_half_a_request_is_disconnected() {
    let folder = runs();
    let server = TestServer::start(folder.path());
    let mut slow = TcpStream::connect(server.address).unwrap();
    slow.set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    slow.write_all(b"GET /api/runs HTTP/1.1\r\nHost: x\r\n")
        .unwrap();
    assert!(server.get_with_token("/api/runs").contains(" 200 "));
    let mut answer = Vec::new();
    slow.read_to_end(&mut answer).unwrap();
    assert!(!answer.windows(5).any(|bytes| bytes == b" 200 "));
}
