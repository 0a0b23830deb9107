//! Uploads to servers that receive slowly, or that accept a request and never answer.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ronde_store::{Address, Opener, RemoteSettings, Store, StoreError, StoreExt};
use socket2::SockRef;

use crate::remote::settings;
use crate::{name, pattern};

/// The bytes that the server receives between two pauses.
const BYTES: usize = 32 << 10;
/// The pause of a slow server, which receives at most 0.65 MB/s.
const PAUSE: Duration = Duration::from_millis(50);
/// The pause of a server that receives at most 41 KB/s.
const LONG_PAUSE: Duration = Duration::from_millis(800);

/// The behaviour of a server.
#[derive(Clone, Copy)]
enum Behaviour {
    /// Receives the body slowly and answers.
    Slow,
    /// Receives the body very slowly, out of large buffers, and answers.
    VerySlow,
    /// Receives the header and nothing more.
    Hangs,
}

/// The bodies that a server has received completely, and the number of its requests.
#[derive(Default)]
struct Received {
    bodies: Vec<Vec<u8>>,
    requests: usize,
}

/// Starts a server and returns its address.
fn serve(behaviour: Behaviour, received: &Arc<Mutex<Received>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    if !matches!(behaviour, Behaviour::VerySlow) {
        // Connections inherit the small buffer, so that the sender waits for the receiver.
        let small = SockRef::from(&listener).set_recv_buffer_size(64 << 10);
        small.unwrap();
    }
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let received = Arc::clone(received);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let received = Arc::clone(&received);
            std::thread::spawn(move || answer(stream, behaviour, &received));
        }
    });
    endpoint
}

/// Answers the requests of one connection; `None` at its end.
#[expect(
    clippy::disallowed_methods,
    reason = "a slow receiver waits between two parts"
)]
fn answer(mut stream: TcpStream, behaviour: Behaviour, received: &Mutex<Received>) -> Option<()> {
    loop {
        let mut header = Vec::new();
        let mut byte = [0];
        while !header.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).ok()?;
            header.push(byte[0]);
        }
        received.lock().unwrap().requests += 1;
        if matches!(behaviour, Behaviour::Hangs) {
            // Until the sender ends the connection.
            std::thread::park();
        }
        let header = String::from_utf8_lossy(&header).to_lowercase();
        let (_, length) = header.split_once("content-length: ")?;
        let length: usize = length.split("\r\n").next()?.parse().ok()?;
        let mut body = vec![0; length];
        for part in body.chunks_mut(BYTES) {
            stream.read_exact(part).ok()?;
            std::thread::sleep(match behaviour {
                Behaviour::VerySlow => LONG_PAUSE,
                _ => PAUSE,
            });
        }
        received.lock().unwrap().bodies.push(body);
        let response = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nETag: \"a\"\r\n\r\n";
        stream.write_all(response.as_bytes()).ok()?;
    }
}

/// Opens a store of such a server, and returns its notices.
fn store(
    behaviour: Behaviour,
    retry_limit: Duration,
    received: &Arc<Mutex<Received>>,
) -> (Arc<dyn Store>, Receiver<String>) {
    let endpoint = serve(behaviour, received);
    let (notify, notices): (Sender<String>, _) = channel();
    let address: Address = "s3://bucket/prefix".parse().unwrap();
    let options = settings(&[
        ("aws_access_key_id", "key"),
        ("aws_secret_access_key", "secret"),
        ("aws_region", "us-east-1"),
        ("aws_endpoint", &endpoint),
        ("allow_http", "true"),
    ]);
    let settings = RemoteSettings {
        retry_limit,
        tell: Some(Arc::new(move |text: &str| {
            let _ = notify.send(text.to_owned());
        })),
        ..options
    };
    (Opener::new(settings).open(&address).unwrap(), notices)
}

#[test]
fn an_upload_may_take_longer_than_the_limit_while_it_makes_progress() {
    let received = Arc::default();
    let (store, _) = store(Behaviour::Slow, Duration::from_secs(10), &received);
    // More than the system buffers, and at least 24 seconds; the longest limit of a client without progress is 20.
    let contents = pattern(1, 15 << 20);
    store.put(&name("x"), &contents).unwrap();
    let received = received.lock().unwrap();
    assert_eq!(received.requests, 1, "nothing is sent again");
    assert!(received.bodies == [contents], "the contents arrived");
}

#[test]
fn an_upload_that_the_system_has_buffered_may_take_longer_than_the_limit() {
    let received = Arc::default();
    let (store, _) = store(Behaviour::VerySlow, Duration::from_secs(5), &received);
    // At least twice the limit without progress, which is 5 s here.
    let contents = pattern(1, 416 << 10);
    store.put(&name("x"), &contents).unwrap();
    let received = received.lock().unwrap();
    assert_eq!(received.requests, 1, "nothing is sent again");
    assert!(received.bodies == [contents], "the contents arrived");
}

#[test]
fn an_upload_to_a_hung_server_ends_within_the_retry_limit_and_is_reported() {
    let received = Arc::default();
    let (store, notices) = store(Behaviour::Hangs, Duration::from_secs(5), &received);
    let error = store.put(&name("x"), &pattern(1, 8 << 20)).unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
    let is_timeout = error.to_string().contains("Connection timed out");
    assert!(is_timeout, "{error}");
    assert_eq!(received.lock().unwrap().requests, 1);
    let notices: Vec<String> = notices.try_iter().collect();
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert!(notices[0].contains("nothing sent for 2 s"), "{notices:?}");
}
