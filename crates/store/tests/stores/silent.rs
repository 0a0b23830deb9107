//! Servers that accept connections and then send nothing, as a stopped process does.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ronde_store::{Address, Opener, RemoteSettings, Store, StoreError};

use crate::name;

const CONTENTS: &[u8] = b"hello";
const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nETag: \"a\"\r\nLast-Modified: Sun, 22 Nov 2026 \
                    15:00:00 GMT\r\n\r\n";
const PART: &str = "HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\nContent-Range: bytes 0-4/5\r\nETag: \
                    \"a\"\r\nLast-Modified: Sun, 22 Nov 2026 15:00:00 GMT\r\n\r\nhello";

/// The reaction to a request to read.
#[derive(Clone, Copy)]
enum Reaction {
    /// Sends nothing, to any request.
    SilentAtOnce,
    /// Answers HEAD, and sends nothing to GET.
    SilentToGet,
    /// Answers HEAD, and GET after the reader has been notified.
    AnswersAfterNotice,
}

/// A server whose connections stay open; returns its address and the methods of the requests.
fn serve(reaction: Reaction, notified: Receiver<String>) -> (Address, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (seen, requests) = channel();
    let notified = Arc::new(Mutex::new(notified));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (seen, notified) = (seen.clone(), Arc::clone(&notified));
            std::thread::spawn(move || answer(stream, reaction, &seen, &notified));
        }
    });
    let address = format!("http://127.0.0.1:{port}").parse().unwrap();
    (address, requests)
}

fn answer(
    mut stream: TcpStream,
    reaction: Reaction,
    seen: &Sender<String>,
    notified: &Mutex<Receiver<String>>,
) {
    let mut request = Vec::new();
    let mut byte = [0];
    while matches!(stream.read(&mut byte), Ok(1)) {
        request.push(byte[0]);
        if !request.ends_with(b"\r\n\r\n") {
            continue;
        }
        let text = String::from_utf8_lossy(&request).into_owned();
        let method = text.split(' ').next().unwrap_or_default().to_owned();
        request.clear();
        let _ = seen.send(method.clone());
        let response = match (reaction, &*method) {
            (Reaction::SilentAtOnce, _) | (Reaction::SilentToGet, "GET") => continue,
            (Reaction::AnswersAfterNotice, "GET") => {
                let _ = notified.lock().unwrap().recv();
                PART
            }
            _ => HEAD,
        };
        let _ = stream.write_all(response.as_bytes());
    }
}

/// The notices that the store has reported.
type Notices = Arc<Mutex<Vec<String>>>;

/// A store with a retry limit of 5 s, the requests that the server gets, and the notices.
fn store(reaction: Reaction) -> (Arc<dyn Store>, Receiver<String>, Notices) {
    let (notify, notified) = channel();
    let notices = Arc::new(Mutex::new(Vec::new()));
    let (address, requests) = serve(reaction, notified);
    let kept = Arc::clone(&notices);
    let settings = RemoteSettings {
        retry_limit: Duration::from_secs(5),
        tell: Some(Arc::new(move |text: &str| {
            kept.lock().unwrap().push(text.to_owned());
            let _ = notify.send(text.to_owned());
        })),
        ..RemoteSettings::default()
    };
    let store = Opener::new(settings).open(&address).unwrap();
    (store, requests, notices)
}

#[test]
fn a_server_that_never_answers_is_reported_and_not_asked_again() {
    let (store, requests, notices) = store(Reaction::SilentAtOnce);
    let error = store.open(&name("x")).err().unwrap();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
    assert_eq!(requests.try_iter().collect::<Vec<_>>(), ["HEAD"]);
    let notices = notices.lock().unwrap();
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert!(
        notices[0].contains("nothing received for 2 s; retrying for up to 5 s"),
        "{notices:?}"
    );
}

#[test]
fn a_server_that_stops_answering_ends_a_read_within_the_retry_limit() {
    let (store, requests, notices) = store(Reaction::SilentToGet);
    let object = store.open(&name("x")).unwrap();
    let error = object.read_at(0, &mut [0; 5]).unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
    assert_eq!(requests.try_iter().collect::<Vec<_>>(), ["HEAD", "GET"]);
    assert_eq!(notices.lock().unwrap().len(), 1);
}

#[test]
fn a_late_answer_is_used_and_reported() {
    let (store, requests, notices) = store(Reaction::AnswersAfterNotice);
    let object = store.open(&name("x")).unwrap();
    let mut contents = [0; 5];
    object.read_at(0, &mut contents).unwrap();
    assert_eq!(contents, CONTENTS);
    assert_eq!(requests.try_iter().collect::<Vec<_>>(), ["HEAD", "GET"]);
    let notices = notices.lock().unwrap();
    assert_eq!(notices.len(), 2, "{notices:?}");
    assert!(notices[1].ends_with("responds again"), "{notices:?}");
}
