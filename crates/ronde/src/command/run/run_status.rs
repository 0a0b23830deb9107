//! [`RunStatus`]: the status of a run from its folder: its event file, its lock and its processes.

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use ronde_tracking::{RunView, is_running, parse_event_line, render};
use serde_json::json;

use crate::command::job::open::host_name;
use crate::command::run::run_folder::EVENT_FILE;

/// Longest line of an event file that is read.
const LINE_BYTES_MAX: usize = 1 << 20;

/// The status of a run.
pub(crate) struct RunStatus {
    folder: PathBuf,
    view: RunView,
    is_running: bool,
}

impl RunStatus {
    /// Reads the status of the run in a folder.
    ///
    /// # Errors
    /// A message with a help line: there is no event file, or it cannot be read.
    pub(crate) fn read(folder: &Path) -> Result<Self, String> {
        let path = folder.join(EVENT_FILE);
        let failed = |error: &std::io::Error| {
            format!(
                "error: cannot read the event file {}: {error}\n  \
                 help: pass the folder of a run, such as runs/digits",
                path.display()
            )
        };
        let file = File::open(&path).map_err(|error| failed(&error))?;
        let mut status = Self {
            folder: folder.to_owned(),
            view: RunView::default(),
            is_running: is_running(folder),
        };
        let mut reader = BufReader::new(file);
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = std::io::Read::take(&mut reader, LINE_BYTES_MAX as u64)
                .read_until(b'\n', &mut line)
                .map_err(|error| failed(&error))?;
            if read == 0 {
                return Ok(status);
            }
            let line = line.strip_suffix(b"\n").unwrap_or(&line);
            // The header and a line that is being written are not events.
            if let Some((_, event)) = parse_event_line(line) {
                status.view.apply(&event);
            }
        }
    }

    /// Returns the phase of the run in one word.
    fn phase(&self) -> &'static str {
        self.view.phase(self.is_running)
    }

    /// Returns a line for each worker process that exists.
    pub(crate) fn workers(&self) -> impl Iterator<Item = String> {
        let running = self.processes().into_iter();
        running.map(|(slot, host, pid)| format!("  worker {slot:<9}pid {pid} on {host}"))
    }

    /// Returns slot, host and process id of the workers, without processes of this host that have ended.
    fn processes(&self) -> Vec<(u32, String, u32)> {
        let here = host_name();
        let exists =
            |host: &str, pid: u32| host != here || Path::new(&format!("/proc/{pid}")).exists();
        let workers = self.view.processes.iter().filter(|_| self.is_running);
        workers
            .filter(|(_, (host, pid))| exists(host, *pid))
            .map(|(slot, (host, pid))| (*slot, host.clone(), *pid))
            .collect()
    }

    /// Returns the status as one line of JSON.
    pub(crate) fn to_json(&self) -> String {
        let workers: Vec<_> = self
            .processes()
            .into_iter()
            .map(|(slot, host, pid)| json!({"slot": slot, "host": host, "pid": pid}))
            .collect();
        let progress = self.view.progress;
        json!({
            "run": self.view.name,
            "folder": self.folder,
            "phase": self.phase(),
            "step": progress.map(|now| now.committed),
            "steps": self.view.steps,
            "epoch": progress.map(|now| now.epoch),
            "epochs": self.view.epochs,
            "loss": progress.map(|now| now.loss),
            "samples_per_s": self.view.throughput.recent(),
            "left_s": self.view.left_s().filter(|_| self.is_running),
            "checkpoint": self.view.checkpoint,
            "straggler": self.view.straggler().filter(|_| self.is_running).map(|late| json!({
                "rank": late.rank,
                "since": late.since,
                "phase": late.phase,
                "delay_s": late.delay_s,
                "share": late.share,
            })),
            "shares": self.view.shares.as_ref().filter(|_| self.is_running).map(|shares| json!({
                "since": shares.since,
                "shards": shares.ranks.iter().map(|(share, _)| share).collect::<Vec<_>>(),
                "shard_s": shares.ranks.iter().map(|(_, time)| time).collect::<Vec<_>>(),
            })),
            "workers": workers,
            "failure": self.view.failure.as_ref().map(ToString::to_string),
            "help": self.view.failure.as_ref().and_then(|failure| failure.help.as_ref()),
            "model": self.view.model.as_ref().map(|model| &model.path),
            "blake3": self.view.model.as_ref().map(|model| &model.blake3),
        })
        .to_string()
    }
}

impl fmt::Display for RunStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.view.name.as_str() {
            "" => "run",
            name => name,
        };
        write!(f, "{name}: {}", self.phase())?;
        let mut line = |label: &str, value: String| write!(f, "\n  {label:<15} {value}");
        match self.is_running {
            true => line("progress", render::progress(&self.view))?,
            false => {
                let committed = self.view.progress.map_or(0, |now| now.committed);
                let steps = render::count(self.view.steps);
                let loss = self.view.progress.map(|now| render::number(now.loss));
                let loss = loss.map_or_else(String::new, |loss| format!(", last loss {loss}"));
                line(
                    "steps",
                    format!("{} of {steps}{loss}", render::count(committed)),
                )?;
            }
        }
        line("folder", self.folder.display().to_string())?;
        if let Some(step) = self.view.checkpoint {
            line("checkpoint", format!("step {}", render::count(step)))?;
        }
        let straggler = self.view.straggler().filter(|_| self.is_running);
        if let Some(straggler) = straggler {
            line("straggler", render::straggler(straggler))?;
        }
        if let Some(shares) = self.view.shares.as_ref().filter(|_| self.is_running) {
            line("shares", render::shares(shares))?;
        }
        if let Some(failure) = self.view.failure.as_ref().filter(|_| !self.is_running) {
            line("failure", failure.to_string())?;
            if let Some(help) = &failure.help {
                line("help", help.clone())?;
            }
        }
        if let Some(model) = self.view.model.as_ref().filter(|_| !self.is_running) {
            line("model", model.path.clone())?;
            line("blake3", model.blake3.clone())?;
        }
        for worker in self.workers() {
            write!(f, "\n{worker}")?;
        }
        Ok(())
    }
}
