//! [`Stores`]: S3 and Azure Blob servers, installed in the target folder and run for the tests.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::steps::{self, Outcome};
use crate::{outside, root};

/// The program that installs, starts and ends the servers.
const SERVERS: &str = "crates/store/tests/servers.py";
/// Its exit code where nothing can be downloaded.
const UNREACHABLE: i32 = 3;
/// The environment variable that skips the tests that need the servers.
pub(crate) const WITHOUT: &str = "RONDE_WITHOUT_STORES";

/// The servers, being installed or running; they end when this is dropped.
pub(crate) enum Stores {
    Started(Child),
    /// There are no servers, for this reason; their tests are skipped.
    Skipped(String),
}

impl Stores {
    /// Starts the installation; it continues in the background.
    pub(crate) fn start() -> Self {
        if std::env::var_os(WITHOUT).is_some() {
            return Self::Skipped(format!("{WITHOUT} is set"));
        }
        let child = outside::target().and_then(|target| {
            Command::new("python3")
                .arg(root().join(SERVERS))
                .arg(target.join("stores"))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .context("cannot start python3")
        });
        match child {
            Ok(child) => Self::Started(child),
            Err(error) => Self::Skipped(format!("{error:#}")),
        }
    }

    /// Waits until the servers run and returns the environment variables by which tests find them; none where they
    /// cannot be installed.
    ///
    /// # Errors
    ///
    /// The servers could be installed and do not start, or nothing may be skipped.
    pub(crate) fn variables(&mut self) -> Result<Vec<(String, String)>> {
        let reason = match self {
            Self::Started(child) => match read_variables(child)? {
                Some(variables) => return Ok(variables),
                None => "PyPI, npm or the npm program is not available".to_owned(),
            },
            Self::Skipped(reason) => reason.clone(),
        };
        let is_requested = std::env::var_os(WITHOUT).is_some();
        if steps::is_ci() && !is_requested {
            bail!("no servers: {reason}; {WITHOUT}=1 skips their tests");
        }
        *self = Self::Skipped(reason);
        Ok(Vec::new())
    }

    /// Returns whether the tests that need the servers run.
    pub(crate) fn outcome(&self) -> Outcome {
        match self {
            Self::Started(_) => Outcome::Passed,
            Self::Skipped(reason) => Outcome::Skipped(format!("tests with S3 and Azure: {reason}")),
        }
    }
}

/// Reads the lines `NAME=VALUE` up to an empty line; `None` where nothing can be installed.
fn read_variables(child: &mut Child) -> Result<Option<Vec<(String, String)>>> {
    let stdout = child.stdout.as_mut().context("the output is a pipe")?;
    let mut variables = Vec::new();
    let mut lines = BufReader::new(stdout).lines();
    while let Some(line) = lines.next().transpose()? {
        if line.is_empty() {
            return Ok(Some(variables));
        }
        let (name, value) = line.split_once('=').context("a line NAME=VALUE")?;
        variables.push((name.to_owned(), value.to_owned()));
    }
    let status = child.wait()?;
    if status.code() == Some(UNREACHABLE) {
        return Ok(None);
    }
    bail!("{SERVERS} failed ({status}); {WITHOUT}=1 skips the tests that need it")
}

impl Drop for Stores {
    fn drop(&mut self) {
        if let Self::Started(child) = self {
            // The servers end when their standard input is closed.
            drop(child.stdin.take());
            let mut rest = Vec::new();
            let _ = child
                .stdout
                .take()
                .map(|mut out| out.read_to_end(&mut rest));
            let _ = child.wait();
        }
    }
}
