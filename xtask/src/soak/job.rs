//! [`Job`]: one run of the built program, and the events that it writes.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};

use anyhow::{Context, Result};
use serde_json::Value;

/// A run that may still be under way.
pub(super) struct Job {
    child: Child,
    lines: Receiver<String>,
    folder: PathBuf,
}

impl Job {
    /// Starts `ronde train` on the run file of a folder; what it says is kept beside that.
    pub(super) fn start(ronde: &Path, folder: &Path, arguments: &[&str]) -> Result<Self> {
        let log = File::create(folder.join("stderr.log")).context("making a log")?;
        let mut command = Command::new(ronde);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("RONDE_") {
                command.env_remove(name);
            }
        }
        let mut child = command
            .args(["train", "run.toml", "--json"])
            .args(arguments)
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .with_context(|| format!("starting {}", ronde.display()))?;
        let stdout = child.stdout.take().context("its output is a pipe")?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            child,
            lines,
            folder: folder.to_owned(),
        })
    }

    /// The next event, if one waits.
    pub(super) fn next(&self) -> Result<Option<Value>> {
        self.lines
            .try_recv()
            .ok()
            .map(|line| parse(&line))
            .transpose()
    }

    /// How it has ended, if it has.
    pub(super) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().context("asking for the end of a run")
    }

    /// Waits for its end, and gives the events that nobody has asked for yet.
    pub(super) fn wait(mut self) -> Result<(ExitStatus, Vec<Value>)> {
        let status = self.child.wait().context("waiting for a run")?;
        Ok((status, self.rest()?))
    }

    /// The events that nobody has asked for yet, of a run that has ended.
    pub(super) fn rest(&self) -> Result<Vec<Value>> {
        self.lines.iter().map(|line| parse(&line)).collect()
    }

    /// The last lines that it wrote for people.
    pub(super) fn last_words(&self) -> String {
        last_words(&self.folder)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // Mostly it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The end of a run's log.
pub(super) fn last_words(folder: &Path) -> String {
    let text = std::fs::read_to_string(folder.join("stderr.log")).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

fn parse(line: &str) -> Result<Value> {
    serde_json::from_str(line).with_context(|| format!("an event: {line:?}"))
}
