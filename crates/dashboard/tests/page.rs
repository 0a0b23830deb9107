//! The page in headless Chromium: what it draws, its views, narrow screens. Skipped where Chromium is not installed.

#![expect(clippy::unwrap_used, reason = "a test may fail here")]

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;

use ronde_dashboard::{RunLibrary, ServerSettings, serve};
use ronde_identity::AccessToken;
use serde_json::{Value, json};

/// Number of looks at the page before a condition counts as wrong.
const LOOKS_MAX: usize = 1_500;

/// A page in headless Chromium. Chromium reads messages from its file descriptor 3 and writes answers to 4, each ended by a zero.
struct Browser {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    session: Value,
    messages: u64,
    /// Errors of scripts, and refused or missing files.
    problems: Vec<String>,
}

impl Browser {
    /// Opens an address; `None` if Chromium is not installed.
    fn open(profile: &Path, url: &str) -> Option<Self> {
        Command::new("chromium").arg("--version").output().ok()?;
        let mut process = Command::new("sh")
            .arg("-c")
            .arg(
                "exec chromium --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage \
                 --remote-debugging-pipe --user-data-dir=\"$0\" 3<&0 4>&1 0</dev/null 1>/dev/null 2>&1",
            )
            .arg(profile)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .ok()?;
        let input = process.stdin.take()?;
        let output = BufReader::new(process.stdout.take()?);
        let mut browser = Self {
            process,
            input,
            output,
            session: Value::Null,
            messages: 0,
            problems: Vec::new(),
        };
        let target = browser.call("Target.createTarget", &json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        browser.session = browser.call("Target.attachToTarget", &attach)["sessionId"].clone();
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), &json!({}));
        }
        browser.call("Page.navigate", &json!({"url": url}));
        Some(browser)
    }

    fn call(&mut self, method: &str, parameters: &Value) -> Value {
        self.messages += 1;
        let mut message = json!({"id": self.messages, "method": method, "params": parameters});
        if !self.session.is_null() {
            message["sessionId"] = self.session.clone();
        }
        self.input
            .write_all(format!("{message}\0").as_bytes())
            .unwrap();
        loop {
            let mut bytes = Vec::new();
            let read = self.output.read_until(0, &mut bytes).unwrap();
            assert!(read > 0, "Chromium has ended");
            bytes.pop();
            let answer: Value = serde_json::from_slice(&bytes).unwrap();
            let kind = answer["method"].as_str().unwrap_or_default();
            if kind == "Runtime.exceptionThrown" || kind == "Log.entryAdded" {
                self.problems.push(answer["params"].to_string());
            }
            if answer["id"] == self.messages {
                return answer["result"].clone();
            }
        }
    }

    /// Evaluates a script.
    fn value(&mut self, script: &str) -> Value {
        let parameters = json!({"expression": script, "returnByValue": true, "awaitPromise": true});
        self.call("Runtime.evaluate", &parameters)["result"]["value"].clone()
    }

    /// Waits until a script returns true.
    fn until(&mut self, script: &str) {
        for _ in 0..LOOKS_MAX {
            let pause = "new Promise(done => setTimeout(done, 20))";
            if self.value(script) == true {
                return;
            }
            self.value(pause);
        }
        let text = self.value("document.body.innerText");
        panic!("never true: {script}\n{text}\n{:?}", self.problems);
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn run(root: &Path, name: &str, rate: f64) {
    let folder = root.join(name);
    std::fs::create_dir(&folder).unwrap();
    let mut events = vec![
        json!({"t": 0.0, "event": "worker_started", "place": 0, "host": "here", "pid": 7}),
        json!({"t": 0.0, "event": "membership_changed", "generation": 1, "world_size": 1, "reason": "all workers have joined"}),
        json!({"t": 0.5, "event": "notice", "rank": 0, "message": "<img src=x onerror=alert(1)>"}),
    ];
    for step in 0..3_000 {
        let t = f64::from(step);
        events.push(json!({"t": t, "event": "step_times", "rank": 0, "step": step, "compute_s": 0.7, "communicate_s": 0.2,
            "wait_data_s": 0.1, "bytes_sent": step}));
        events.push(json!({"t": t, "event": "step_committed", "step": step, "epoch": 0, "generation": 1, "loss": rate / (t + 1.0),
            "samples": 64, "learning_rate": rate, "gradient_norm": 1.0, "duration_s": 1.0}));
    }
    events.push(json!({"t": 3e3, "event": "evaluated", "step": 2_999, "loss": 0.5, "samples": 9, "accuracy": 0.875}));
    events.push(
        json!({"t": 3e3, "event": "confusion_measured", "step": 2_999, "rows": [[4, 1], [0, 4]], "classes": ["cat", "dog"]}),
    );
    let lines: String = events.iter().map(|event| format!("{event}\n")).collect();
    // `event` must follow `t`, as ronde writes it; `json!` sorts keys, so this reads through the slow path as well.
    std::fs::write(folder.join("events.jsonl"), lines).unwrap();
    std::fs::write(
        folder.join("run.toml"),
        format!("[train]\nlearning_rate = {rate}\n"),
    )
    .unwrap();
}

/// A run that has failed before its first step.
fn failed_run(root: &Path) {
    let folder = root.join("broken");
    std::fs::create_dir(&folder).unwrap();
    let message = "training diverged at step 1\n  help: try a lower train.learning_rate,\n  or train.clip_norm";
    let failed = json!({"t": 1.0, "event": "worker_failed", "rank": 0, "message": message, "last_step": null,
        "secondary": false, "user_error": false});
    std::fs::write(folder.join("events.jsonl"), format!("{failed}\n")).unwrap();
    std::fs::write(folder.join("run.toml"), "[train]\nlearning_rate = 9.0\n").unwrap();
}

/// The views, and what each shows of the run `slow`.
const VIEWS: [(&str, &str); 8] = [
    ("curves", "Loss"),
    ("classes", "8 of 9 right"),
    ("classes", "dog"),
    ("ranks", "here (pid 7)"),
    ("members", "all workers have joined"),
    ("checkpoints", "no checkpoint"),
    ("logs", "<img src=x onerror=alert(1)>"),
    ("settings", "train.learning_rate"),
];

/// Waits until the panel shows a text.
fn shows(browser: &mut Browser, text: &str) {
    let text = json!(text);
    browser.until(&format!(
        "document.getElementById('panel').innerText.includes({text})"
    ));
}

/// Opens a run and a view in a new page, as a reload does: no other view was open before.
fn open_first(browser: &mut Browser, run: &str, tab: &str) {
    let page = browser.value("location.origin");
    browser.call("Page.navigate", &json!({"url": "about:blank"}));
    browser.until("location.href === 'about:blank'");
    let url = format!("{}/#run={run}&tab={tab}", page.as_str().unwrap());
    browser.call("Page.navigate", &json!({"url": url}));
    browser.until(&format!(
        "document.getElementById('tab-{tab}')?.getAttribute('aria-selected') === 'true'"
    ));
}

/// Each view shows its contents also when it is the first one.
fn check_first_views(browser: &mut Browser) {
    for (tab, text) in VIEWS {
        open_first(browser, "slow", tab);
        shows(browser, text);
    }
    for (tab, _) in VIEWS {
        open_first(browser, "broken", tab);
        let failure = "rank 0: training diverged at step 1\nhelp: try a lower train.learning_rate, or train.clip_norm";
        let failure = json!(failure);
        browser.until(&format!(
            "document.getElementById('run-failure').innerText === {failure}"
        ));
    }
    assert_eq!(browser.problems, [""; 0]);
}

fn check(browser: &mut Browser) {
    browser.until("document.querySelectorAll('#panel canvas').length >= 5");
    browser.until("document.querySelectorAll('.run').length === 3");
    browser.until("document.querySelector('.tiles').innerText.includes('87.5')");
    assert_eq!(
        browser.value("location.search"),
        "",
        "the token left the address"
    );
    assert_eq!(
        browser.value("document.cookie"),
        "",
        "scripts cannot read the token"
    );
    browser.value("document.querySelectorAll('.run input')[1].click()");
    browser.until("document.querySelectorAll('.chart')[0].innerText.includes('slow')");
    browser.until("document.querySelectorAll('.chart')[0].innerText.includes('fast')");
    for (tab, text) in VIEWS {
        browser.value(&format!("document.getElementById('tab-{tab}').click()"));
        shows(browser, text);
    }
    browser.until("document.querySelectorAll('.differs').length === 2");
    browser.value("document.getElementById('theme').click()");
    browser.until("['dark', 'light'].includes(document.documentElement.dataset.theme)");
    let phone = json!({"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": true});
    browser.call("Emulation.setDeviceMetricsOverride", &phone);
    for tab in ["curves", "classes", "ranks", "settings"] {
        browser.value(&format!("document.getElementById('tab-{tab}').click()"));
        browser.until("document.documentElement.scrollWidth <= 360");
    }
    assert_eq!(browser.problems, [""; 0]);
}

#[test]
fn the_page_draws_every_view_of_two_runs() {
    let dir = tempfile::tempdir().unwrap();
    let runs = dir.path().join("runs");
    std::fs::create_dir(&runs).unwrap();
    failed_run(&runs);
    run(&runs, "slow", 0.1);
    run(&runs, "fast", 0.5);
    let library = Arc::new(RunLibrary::open(&runs).unwrap());
    let settings = ServerSettings {
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        token: AccessToken::random().unwrap(),
    };
    let stop = AtomicBool::new(false);
    let (ready, started) = channel();
    std::thread::scope(|scope| {
        let served = scope.spawn(|| {
            let ready = move |_, url: &str| ready.send(url.to_owned()).unwrap();
            serve(library, settings, ready, || stop.load(Ordering::SeqCst))
        });
        let url = started.recv().unwrap();
        let checked =
            std::panic::catch_unwind(|| match Browser::open(&dir.path().join("profile"), &url) {
                Some(mut browser) => {
                    check(&mut browser);
                    check_first_views(&mut browser);
                }
                None => ronde_testing::skip("the program `chromium` is not installed"),
            });
        stop.store(true, Ordering::SeqCst);
        served.join().unwrap().unwrap();
        if let Err(panic) = checked {
            std::panic::resume_unwind(panic);
        }
    });
}
