//! Copies the results of a job from its hosts, as one archive of each.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use super::preparation::script;
use super::{RemoteJob, SshTarget};
use crate::error::SubmitError;
use crate::fetching::{LAUNCHER_LOG, create};

/// Writes the results as an archive, without the job's secrets, and the launcher's output. Argument: the folder of the job.
/// Files that a run replaces meanwhile do not count as failures.
const SEND: &str = r#"
cd -- "$1" || exit 71
set --
test -d results && set -- --exclude=./job -C results .
test -f launcher/output.log && set -- "$@" -C "${1:+../}launcher" output.log
test $# -gt 0 || exit 0
tar -c -f - "$@" 2>/dev/null
test $? -le 1
"#;

/// Copies the results from all hosts; those of the first one replace those of the others. The results of the remaining hosts are
/// copied, too, before the first error is returned.
pub(super) fn fetch(target: &SshTarget, job: &RemoteJob<'_>, to: &Path) -> Result<(), SubmitError> {
    create(to)?;
    let mut result = Ok(());
    for host in job.hosts.iter().rev() {
        let copied = fetch_from(target, job, &host.host, to);
        result = result.and(copied);
    }
    let log = to.join("output.log");
    if log.is_file() {
        let logs = to.join("logs");
        create(&logs)?;
        let renamed = std::fs::rename(&log, logs.join(LAUNCHER_LOG));
        renamed.map_err(SubmitError::file("write", &logs))?;
    }
    result
}

/// Copies the results of one host.
fn fetch_from(
    target: &SshTarget,
    job: &RemoteJob<'_>,
    host: &str,
    to: &Path,
) -> Result<(), SubmitError> {
    let failed = |error: std::io::Error| SubmitError::Program {
        program: "tar".to_owned(),
        problem: error.to_string(),
    };
    let folder = job.paths.folder().display().to_string();
    let mut tar = Command::new("tar")
        .args(["-x", "-f", "-", "-C"])
        .arg(to)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let connection = target.connection(host);
    let mut received = CountedOutput {
        out: tar.stdin.take(),
        bytes: 0,
    };
    let sent = connection.stream(&script(SEND, &[&folder]), &mut received);
    // Its end is that of the input of `tar`.
    let bytes = received.bytes;
    drop(received);
    let unpacked = tar.wait_with_output().map_err(failed)?;
    match sent? {
        // A host without results sends nothing, which `tar` does not take for an archive.
        0 if bytes == 0 || unpacked.status.success() => Ok(()),
        71 => Err(connection.failed(format!("it has no folder {folder} any more"))),
        code => {
            let problem = String::from_utf8_lossy(&unpacked.stderr);
            let problem = match problem.trim() {
                "" => format!("the host ends with exit code {code}"),
                problem => problem.to_owned(),
            };
            Err(connection.failed(format!("the results cannot be copied: {problem}")))
        }
    }
}

/// Passes on written bytes, and counts them.
struct CountedOutput<W> {
    out: Option<W>,
    bytes: u64,
}

impl<W: Write> Write for CountedOutput<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = match &mut self.out {
            Some(out) => out.write(bytes)?,
            None => bytes.len(),
        };
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.as_mut().map_or(Ok(()), Write::flush)
    }
}
