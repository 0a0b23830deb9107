//! `ronde serve`: predictions and texts over HTTP, limits, hostile requests, and the end.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ronde_core::Rank;
use ronde_identity::rustls::{ClientConnection, StreamOwned};
use ronde_identity::{Authority, Member, Validity};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{RONDE, Running, TestFolder, copy_model, until};

/// An answer: the status, the head and the body.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn parse(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((text, ""));
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
        Self {
            status: status.unwrap_or(0),
            head: head.to_owned(),
            body: body.to_owned(),
        }
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// Checks that the answer is an error that contains `problem`.
    fn refuses(&self, status: u16, problem: &str) {
        assert_eq!(self.status, status, "{}", self.body);
        let message = self.json()["error"].as_str().unwrap().to_owned();
        assert!(message.contains(problem), "{problem}: {message}");
    }
}

/// A server of a test.
struct Server {
    running: Running,
    address: String,
}

impl Server {
    fn start(dir: &TestFolder, arguments: &str) -> Self {
        let words = format!("serve {arguments} --listen 127.0.0.1:0");
        let words: Vec<&str> = words.split_whitespace().collect();
        let mut running = dir.start(RONDE, &words, &[]);
        running.wait_stdout("://", 1);
        let output = running.stdout();
        let address = output
            .lines()
            .find_map(|line| Some(line.split_once("://")?.1));
        Self {
            address: address.unwrap().to_owned(),
            running,
        }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        let limit = Some(Duration::from_secs(60));
        stream.set_read_timeout(limit).unwrap();
        stream
    }

    /// Sends bytes and returns all that is answered.
    fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        // The server may close the connection before it has read everything.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> Answer {
        let length = body.len();
        let text = format!(
            "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
        );
        Answer::parse(&self.raw(text.as_bytes()))
    }

    fn get(&self, path: &str) -> Answer {
        self.send("GET", path, "", "")
    }

    fn post(&self, path: &str, body: &str) -> Answer {
        self.send("POST", path, "", body)
    }

    fn stop(self) {
        self.running.signal(Signal::TERM);
        self.running.wait().expect(0, &["stopped"]);
    }
}

/// Trains a model of two numbers whose test data is in `test.csv`.
fn trained() -> TestFolder {
    let dir = TestFolder::new();
    let lines = |from: u32, to: u32| -> String {
        let line = |number: u32| format!("{number}.5,0.5,{}\n", number % 3);
        (from..to).map(line).collect()
    };
    dir.write("train.csv", &lines(0, 40));
    dir.write("test.csv", &lines(40, 60));
    let run = "[data]\nsource = \"records\"\ntrain = \"train.csv\"\ntest = \"test.csv\"\n\
        features = { decode = \"numbers\", field = [\"0\", \"1\"], shape = [2] }\n\
        label = { field = \"2\", classes = 3 }\n[model]\nkind = \"linear\"\n\
        [train]\nsteps = 3\nglobal_batch_size = 8\n[run]\noutput = \"out\"\n";
    dir.write("run.toml", run);
    dir.run(&["train", "run.toml", "--json"]).expect(0, &[]);
    dir
}

#[test]
fn requests_have_the_predictions_of_the_command() {
    let dir = trained();
    dir.run(&["predict", "out", "--to", "all.jsonl"])
        .expect(0, &[]);
    let text = std::fs::read_to_string(dir.path().join("all.jsonl")).unwrap();
    let expected: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    copy_model(&dir, "out", "alone");
    let server = Server::start(&dir, "alone -n 2 --batch-max 8");
    let whole: Vec<Value> = (40..60)
        .map(|number| json!([f64::from(number) + 0.5, 0.5]))
        .collect();
    let check = |answer: Answer, expected: &[Value]| {
        assert_eq!(answer.status, 200, "{}", answer.body);
        let answer = answer.json();
        let found = answer["predictions"].as_array().unwrap();
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert_eq!(found["class"], expected["class"]);
            assert_eq!(found["probabilities"], expected["probabilities"]);
        }
    };
    let body = |inputs: &[Value]| json!({ "inputs": inputs }).to_string();
    check(server.post("/v1/predict", &body(&whole)), &expected);
    // Requests that arrive together are computed together.
    std::thread::scope(|scope| {
        for (index, sample) in whole.iter().enumerate() {
            let (server, expected, body) = (&server, &expected, &body);
            scope.spawn(move || {
                let answer = server.post("/v1/predict", &body(std::slice::from_ref(sample)));
                check(answer, &expected[index..=index]);
            });
        }
    });
    let model = server.get("/v1/model").json();
    assert_eq!(model["input_shape"], json!([2]));
    assert_eq!(server.get("/openapi.json").json()["openapi"], "3.1.0");
    assert_eq!(server.get("/healthz").body, "ok\n");
    assert_eq!(server.get("/readyz").status, 200);
    let metrics = server.get("/metrics").body;
    let line = "ronde_serve_requests_total{endpoint=\"predict\",status=\"200\"} 21";
    assert!(metrics.contains(line), "{metrics}");
    assert!(
        metrics.contains("ronde_serve_samples_total 40"),
        "{metrics}"
    );
    server.stop();
}

#[test]
fn hostile_requests_get_errors_and_harm_no_others() {
    let dir = trained();
    let server = Server::start(&dir, "out --body-max 4096");
    let deep = format!("{{\"inputs\":{}", "[".repeat(4000));
    let large = format!("{{\"inputs\":[[{}1]]}}", " ".repeat(5000));
    for (body, status, problem) in [
        ("", 400, "EOF"),
        ("{\"inputs\":[[1,NaN]]}", 400, "expected value"),
        ("{\"inputs\":[[1,1e39]]}", 400, "out of the range"),
        ("{\"inputs\":[[1,2,3]]}", 400, "shape [3], expected [2]"),
        ("{\"inputs\":[[1,2],[3]]}", 400, "different lengths"),
        ("{\"inputs\":\"text\"}", 400, "invalid type: string"),
        ("{\"input\":[[1,2]]}", 400, "unknown field `input`"),
        (&*deep, 400, "deeper than 8"),
        (&*large, 413, "the limit is 4096 bytes"),
    ] {
        server.post("/v1/predict", body).refuses(status, problem);
    }
    let generate = server.post("/v1/generate", "{\"prompt\":[1]}");
    generate.refuses(400, "not of kind `gpt`");
    server.get("/v1/predict").refuses(405, "another method");
    server.get("/v1/nothing").refuses(404, "no such endpoint");
    for junk in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"[..],
        b"GET /healthz HTTP/9.9\r\n\r\n",
        b"POST /v1/predict HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/predict HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ] {
        let answer = server.raw(junk);
        assert!(!answer.contains(" 200 "), "{answer}");
    }
    // A stated length over the limit is refused before the body arrives.
    let head = "POST /v1/predict HTTP/1.1\r\nhost: a\r\nconnection: close\r\n";
    let answer = server.raw(format!("{head}content-length: 1000000000000\r\n\r\n").as_bytes());
    Answer::parse(&answer).refuses(413, "the limit is 4096 bytes");
    let good = server.post("/v1/predict", "{\"inputs\":[[1,2]]}");
    assert_eq!(good.status, 200, "{}", good.body);
    server.stop();
}

#[test]
fn a_token_is_required_where_one_is_set() {
    let dir = trained();
    dir.write("token", "0123456789abcdef\n");
    let server = Server::start(&dir, "out --token-file token");
    let body = "{\"inputs\":[[1,2]]}";
    let refused = server.post("/v1/predict", body);
    refused.refuses(401, "a token is required");
    assert!(
        refused.head.contains("www-authenticate: Bearer"),
        "{}",
        refused.head
    );
    let with = |token: &str| {
        let header = format!("authorization: Bearer {token}\r\n");
        server.send("POST", "/v1/predict", &header, body).status
    };
    assert_eq!(with("0123456789abcdeX"), 401);
    assert_eq!(with("0123456789abcdef"), 200);
    assert_eq!(server.get("/metrics").status, 401);
    assert_eq!(server.get("/healthz").status, 200);
    server.stop();
    dir.write("token", "short");
    dir.run(&["serve", "out", "--token-file", "token"])
        .expect(2, &["invalid token: 5 characters", "openssl"]);
}

#[test]
fn connections_are_encrypted_with_the_certificate_of_the_user() {
    let dir = trained();
    let hour = Validity::from_now(SystemTime::now(), Duration::from_secs(3600));
    let authority = Authority::new("job", hour).unwrap();
    let member = Member::Rank(Rank(0));
    let identity = authority.issue(&member, hour).unwrap();
    dir.write("server.pem", identity.to_pem().expose());
    let server = Server::start(&dir, "out --tls-cert server.pem --tls-key server.pem");
    let config = identity.client_config(b"http/1.1").unwrap();
    let connect = |config| {
        let client = ClientConnection::new(config, identity.name_of(&member).unwrap()).unwrap();
        let mut stream = StreamOwned::new(client, server.connect());
        let body = "{\"inputs\":[[1,2]]}";
        let request = format!(
            "POST /v1/predict HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok::<_, std::io::Error>(Answer::parse(&String::from_utf8_lossy(&answer)))
    };
    let answer = connect(config).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
    let other = Authority::new("job", hour).unwrap();
    let stranger = other.issue(&member, hour).unwrap();
    let refused = connect(stranger.client_config(b"http/1.1").unwrap());
    assert!(refused.is_err(), "a certificate of another authority");
    // Without TLS there is no answer, and a connection without a handshake does not delay the end.
    assert!(
        !server
            .raw(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n")
            .contains("200")
    );
    let idle = server.connect();
    server.stop();
    drop(idle);
    dir.write("key.pem", "junk");
    dir.run(&[
        "serve",
        "out",
        "--tls-cert",
        "server.pem",
        "--tls-key",
        "key.pem",
    ])
    .expect(
        2,
        &["cannot use the certificate server.pem", "the private key"],
    );
    dir.run(&["serve", "out", "--tls-cert", "server.pem"])
        .expect(2, &["--tls-key"]);
}

#[test]
fn requests_that_have_arrived_are_answered_before_the_end() {
    let dir = trained();
    // The batch is closed by the end of the server alone.
    let server = Server::start(&dir, "out --batch-wait 20000 --queue-max 1");
    let body = "{\"inputs\":[[1,2]]}";
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| server.post("/v1/predict", body));
        crate::support::until("the request waits", || {
            let metrics = server.get("/metrics").body;
            metrics.contains("ronde_serve_queued_requests 1")
        });
        let refused = server.post("/v1/predict", body);
        refused.refuses(503, "the queue is full");
        assert!(refused.head.contains("retry-after: 1"), "{}", refused.head);
        server.running.signal(Signal::TERM);
        let answer = waiting.join().unwrap();
        assert_eq!(answer.status, 200, "{}", answer.body);
    });
    server.running.wait().expect(0, &["stopped"]);
}

#[test]
fn requests_that_have_not_arrived_do_not_hold_up_the_end() {
    let dir = trained();
    let server = Server::start(&dir, "out");
    let mut head = server.connect();
    head.write_all(b"GET /v1/mod").unwrap();
    let mut body = server.connect();
    body.write_all(
        b"POST /v1/predict HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\nexpect: 100-continue\r\n\r\n",
    )
    .unwrap();
    let mut continued = [0; 21];
    body.read_exact(&mut continued).unwrap();
    assert_eq!(&continued, b"HTTP/1.1 100 Continue", "the body is read");
    body.write_all(b"{").unwrap();
    server.running.signal(Signal::TERM);
    let mut answer = String::new();
    body.read_to_string(&mut answer).unwrap();
    // Not 408, the answer after the time for a body.
    assert!(answer.contains("HTTP/1.1 503 "), "{answer}");
    answer.clear();
    head.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "");
    server.running.wait().expect(0, &["stopped"]);
}

#[test]
fn translations_are_those_of_the_command() {
    let dir = TestFolder::new();
    let run = "[data]\nsource = \"number_words\"\nsamples = 200\ntest_samples = 30\n[model]\nkind = \"transformer\"\n\
        source = 9\nlayers = 1\nwidth = 16\nheads = 2\n[train]\nsteps = 20\n[run]\noutput = \"numbers\"\n";
    dir.write("numbers.toml", run);
    dir.run(&["train", "numbers.toml", "--json"]).expect(0, &[]);
    dir.run(&["predict", "numbers", "--to", "texts.jsonl"])
        .expect(0, &[]);
    let text = std::fs::read_to_string(dir.path().join("texts.jsonl")).unwrap();
    copy_model(&dir, "numbers", "alone");
    let server = Server::start(&dir, "alone");
    std::thread::scope(|scope| {
        for line in text.lines().take(6) {
            let server = &server;
            scope.spawn(move || {
                let expected: Value = serde_json::from_str(line).unwrap();
                let body = json!({ "prompt": expected["prompt"] }).to_string();
                let answer = server.post("/v1/generate", &body).json();
                assert_eq!(answer["tokens"], expected["tokens"]);
                assert_eq!(answer["text"], expected["text"]);
            });
        }
    });
    let short = server.post("/v1/generate", "{\"prompt\":[3],\"max_tokens\":1}");
    assert!(short.json()["tokens"].as_array().unwrap().len() <= 1);
    for (prompt, problem) in [
        ("[]", "0 tokens, expected 1 to 9"),
        ("[1,1,1,1,1,1,1,1,1,1]", "10 tokens"),
    ] {
        let body = format!("{{\"prompt\":{prompt}}}");
        server.post("/v1/generate", &body).refuses(400, problem);
    }
    server.stop();
}

#[test]
fn texts_are_generated_token_by_token() {
    let dir = TestFolder::new();
    let run = "[data]\nsource = \"text\"\ncontext = 32\n[model]\nkind = \"gpt\"\nlayers = 1\nwidth = 16\nheads = 2\n\
        [train]\nsteps = 20\n[run]\noutput = \"gpt\"\n";
    dir.write("gpt.toml", run);
    dir.run(&["train", "gpt.toml", "--json"]).expect(0, &[]);
    dir.write("prompts.txt", "It was\nIt was the\nI\n");
    dir.run(&[
        "predict",
        "gpt",
        "--prompts",
        "prompts.txt",
        "--to",
        "texts.jsonl",
    ])
    .expect(0, &[]);
    let text = std::fs::read_to_string(dir.path().join("texts.jsonl")).unwrap();
    let expected: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    copy_model(&dir, "gpt", "alone");
    let server = Server::start(&dir, "alone");
    std::thread::scope(|scope| {
        for expected in &expected {
            let server = &server;
            scope.spawn(move || {
                let body = json!({ "prompt": expected["prompt"] }).to_string();
                let answer = server.post("/v1/generate", &body).json();
                assert_eq!(answer["tokens"], expected["tokens"]);
                assert_eq!(answer["text"], expected["text"]);
            });
        }
    });
    let streamed = server.post(
        "/v1/generate",
        "{\"prompt\":\"It was\",\"max_tokens\":3,\"stream\":true}",
    );
    assert!(
        streamed.head.contains("text/event-stream"),
        "{}",
        streamed.head
    );
    // The keys of an event are in alphabetical order.
    let tokens = streamed.body.matches("data: {\"text\":").count();
    assert_eq!(tokens, 3, "{}", streamed.body);
    assert!(streamed.body.contains("event: end"), "{}", streamed.body);
    for (body, problem) in [
        ("{}", "missing field `prompt`"),
        ("{\"prompt\":[]}", "0 tokens, expected 1 to 32"),
        ("{\"prompt\":[70000]}", "token `70000`"),
        ("{\"prompt\":[-1]}", "a text or an array of token numbers"),
        ("{\"prompt\":\"\u{416}\"}", "\u{416}"),
        ("{\"prompt\":\"a\",\"temperature\":-1}", "temperature"),
        ("{\"prompt\":\"a\",\"max_tokens\":0}", "nonzero"),
    ] {
        server.post("/v1/generate", body).refuses(400, problem);
    }
    server.stop();
}

#[test]
fn mistakes_are_named() {
    let dir = trained();
    dir.run(&["serve", "nothing"]).expect(2, &["nothing"]);
    dir.run(&["serve", "out", "--batch-max", "0"])
        .expect(2, &["--batch-max"]);
    let server = Server::start(&dir, "out");
    dir.run(&["serve", "out", "--listen", &server.address])
        .expect(2, &["cannot listen at", "--listen 127.0.0.1:0"]);
    server.stop();
}

#[test]
fn a_newer_model_replaces_the_served_one_and_a_damaged_one_does_not() {
    let dir = trained();
    let server = Server::start(&dir, "out");
    let sample = r#"{"inputs": [[1.5, 0.5]]}"#;
    let hash = || server.post("/v1/predict", sample).json()["model"].clone();
    let first = hash();
    let train = [
        "train",
        "run.toml",
        "--json",
        "--set",
        "train.steps=4",
        "--set",
        "run.output=more",
    ];
    dir.run(&train).expect(0, &[]);
    let file = |folder: &str, name: &str| dir.path().join(folder).join(name);
    std::fs::write(file("out", "model.safetensors"), "damaged").unwrap();
    until("the damaged model is refused", || {
        assert_eq!(hash(), first);
        server
            .running
            .stderr()
            .contains("cannot load the newer model")
    });
    // Each file is replaced at once, as training does.
    for name in ["model.safetensors", "model.json"] {
        let copy = file("more", "copy");
        std::fs::copy(file("more", name), &copy).unwrap();
        std::fs::rename(&copy, file("out", name)).unwrap();
    }
    until("the newer model is served", || hash() != first);
    assert_eq!(server.get("/v1/model").json()["blake3"], hash());
    server.stop();
}

/// Trains a model of images in folders, one folder for each class.
fn trained_on_images() -> TestFolder {
    let dir = TestFolder::new();
    let pictures: [(&str, &[u8]); 3] = [
        ("left/a.jpg", PATTERN_JPG),
        ("left/b.png", PATTERN_PNG),
        ("right/c.webp", PATTERN_WEBP),
    ];
    for (name, bytes) in pictures {
        let path = dir.path().join("images").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    let run = "[data]\nsource = \"records\"\ntrain = \"images\"\ntest = \"images\"\n\
        features = { decode = \"image\", shape = [3, 8, 6], resize = 12, crop = \"random_resized\", flip = true, \
        mean = [0.5, 0.4, 0.3], std = [0.2, 0.3, 0.4] }\n[model]\nkind = \"linear\"\n\
        [train]\nsteps = 3\nglobal_batch_size = 2\n[run]\noutput = \"out\"\n";
    dir.write("run.toml", run);
    dir.run(&["train", "run.toml", "--json"]).expect(0, &[]);
    dir
}

const PATTERN_JPG: &[u8] = include_bytes!("../../../data/tests/vectors/pattern.jpg");
const PATTERN_PNG: &[u8] = include_bytes!("../../../data/tests/vectors/pattern.png");
const PATTERN_WEBP: &[u8] = include_bytes!("../../../data/tests/vectors/pattern.webp");

fn predictions(dir: &TestFolder, name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(dir.path().join(name)).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn encoded_images_have_the_predictions_of_the_test_data() {
    let dir = trained_on_images();
    dir.run(&["predict", "out", "--to", "test.jsonl"])
        .expect(0, &[]);
    copy_model(&dir, "out", "alone");
    let images = ["predict", "alone", "--images", "images", "--to"];
    dir.run(&[&images[..], &["images.jsonl"]].concat())
        .expect(0, &["3 predictions"]);
    // A file that is listed twice is predicted twice, and reported.
    let twice = ["twice.jsonl", "--images", "images/*/a.jpg"];
    dir.run(&[&images[..], &twice].concat())
        .expect(0, &["4 predictions", "a.jpg, 2 times"]);
    let expected = predictions(&dir, "test.jsonl");
    assert_eq!(predictions(&dir, "images.jsonl"), expected);
    // Other files of a folder are left out.
    std::fs::create_dir(dir.path().join("mixed")).unwrap();
    std::fs::write(dir.path().join("mixed/a.JPG"), PATTERN_JPG).unwrap();
    dir.write("mixed/notes.txt", "not an image");
    dir.run(&["predict", "out", "--to", "mixed.csv", "--images", "mixed"])
        .expect(0, &["1 predictions"]);
    let server = Server::start(&dir, "alone");
    let encode = |bytes: &[u8]| BASE64_STANDARD.encode(bytes);
    let all = [PATTERN_JPG, PATTERN_PNG, PATTERN_WEBP].map(encode);
    let answer = server.post("/v1/predict", &json!({ "images": all }).to_string());
    assert_eq!(answer.status, 200, "{}", answer.body);
    let answer = answer.json();
    let found = answer["predictions"].as_array().unwrap();
    assert_eq!(found.len(), 3);
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found["probabilities"], expected["probabilities"]);
    }
    let described = &server.get("/openapi.json").json()["components"]["schemas"]["Predict"];
    assert_eq!(described["properties"]["images"]["type"], "array");
    let cut = encode(&PATTERN_PNG[..100]);
    for (images, problem) in [
        (json!([all[0], cut]), "image 1: cannot decode the image"),
        (json!(["AAAA"]), "image 0: not a JPEG, PNG or WebP image"),
        (json!(["?"]), "an image is not base64"),
        (json!([]), "0 images, expected 1 to"),
        (json!("AAAA"), "invalid type: string"),
        (json!([[1]]), "expected the base64 text of an image"),
    ] {
        let body = json!({ "images": images }).to_string();
        server.post("/v1/predict", &body).refuses(400, problem);
    }
    let both = json!({ "images": all, "inputs": [[1]] }).to_string();
    let both = server.post("/v1/predict", &both);
    both.refuses(400, "cannot be combined");
    server.stop();
}

#[test]
fn images_are_refused_by_models_of_numbers() {
    let dir = trained();
    let server = Server::start(&dir, "out --body-max 4096");
    let answer = server.post("/v1/predict", "{\"images\":[\"AAAA\"]}");
    answer.refuses(400, "not trained on encoded images");
    server
        .post("/v1/predict", "{}")
        .refuses(400, "missing field");
    server.stop();
    dir.write("a.png", "");
    dir.run(&["predict", "out", "--to", "a.csv", "--images", "a.png"])
        .expect(2, &["cannot use --images", "help:"]);
}
