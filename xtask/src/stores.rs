//! [`Stores`]: servers that speak S3 and Azure Blob, installed below the target folder and run for the tests.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::{outside, root};

/// Installs, starts and ends them.
const SERVERS: &str = "crates/store/tests/servers.py";
/// It ends so where nothing can be fetched.
const UNREACHABLE: i32 = 3;
/// Set by those who want to do without.
pub(crate) const WITHOUT: &str = "RONDE_WITHOUT_STORES";

/// The servers, being installed or running; they end with this.
pub(crate) struct Stores(Option<Child>);

impl Stores {
    /// Begins to install and start them; that goes on beside what else is done.
    pub(crate) fn start() -> Result<Self> {
        if std::env::var_os(WITHOUT).is_some() {
            println!("object stores: their tests are skipped, {WITHOUT} is set");
            return Ok(Self(None));
        }
        let child = Command::new("python3")
            .arg(root().join(SERVERS))
            .arg(outside::target()?.join("stores"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| {
                format!("python3, for the object stores of the tests; {WITHOUT}=1 does without")
            })?;
        Ok(Self(Some(child)))
    }

    /// Waits until they run; the variables by which tests find them.
    pub(crate) fn variables(&mut self) -> Result<Vec<(String, String)>> {
        let Some(child) = &mut self.0 else {
            return Ok(Vec::new());
        };
        let stdout = child.stdout.as_mut().context("its output is a pipe")?;
        let mut variables = Vec::new();
        let mut lines = BufReader::new(stdout).lines();
        while let Some(line) = lines.next().transpose()? {
            if line.is_empty() {
                return Ok(variables);
            }
            let (name, value) = line.split_once('=').context("a line NAME=VALUE")?;
            variables.push((name.to_owned(), value.to_owned()));
        }
        let status = child.wait()?;
        match status.code() {
            Some(UNREACHABLE) => bail!(
                "the object stores of the tests are not here, and PyPI or npm cannot be reached; {WITHOUT}=1 does \
                 without them"
            ),
            _ => bail!("{SERVERS} failed ({status}); {WITHOUT}=1 does without"),
        }
    }
}

impl Drop for Stores {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            // They end when their standard input is closed.
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
