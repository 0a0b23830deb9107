//! Hosts that join a job over SSH after its submission, or leave it before its end.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::connection::{Input, SshConnection};
use super::facts::{self, HostFacts};
use super::preparation::{STORE_INPUTS, STORE_PROGRAM, script};
use super::start::{StartOrder, StartReport, TOKEN_WORD};
use super::unused::NOTE_USE;
use super::{ANSWER_MAX, RemoteJob, SshTarget};
use crate::drain_sources;
use crate::error::SubmitError;
use crate::hosts::HostSlots;
use crate::job::{JobPlacement, PlacedHost};
use crate::process_folder::{ProcessCommand, ProcessState};
use crate::shell_words;

/// Time limit for a start on a host.
const START_MAX: Duration = Duration::from_secs(120);
/// Time limit for a copy from the first host.
const COPY_MAX: Duration = Duration::from_secs(4 * 3600);
/// Prints the information for an agent. Argument: the folder of the job. The token is the last line.
const DESCRIBE: &str = r#"
cd -- "$1" || exit 71
printf 'command '; tr -d '\n' < launcher/command.json; echo
for file in results/job/coordinators/*; do printf 'coordinator '; cat "$file"; echo; done
printf 'token '; cat results/job/token; echo
"#;
/// Creates what a host lacks and reports what it has. Arguments: the folder of the job, the program, the folder of the data, the
/// mark of the job.
const PROBE: [&str; 3] = [
    r#"
echo ronde-begins
umask 077
test -e "$1/results/job/coordinators" && echo shared
mkdir -p -- "$1" "$(dirname -- "$2")" || exit 71
test -e "$1/owner" || printf %s "$4-added" | cat > "$1/owner" || { rm -f "$1/owner"; exit 71; }
case "$(cat "$1/owner")" in "$4"|"$4"-*) ;; *) echo other; exit 0;; esac
program=$(dirname -- "$2")
program=${program##*/} inputs=${3##*/} mark=$4
cd -- "${1%/jobs/*}" || exit 71
"#,
    NOTE_USE,
    r#"
test -x "$2" && echo has-program
test -z "$3" || test -d "$3" && echo has-inputs
exit 0
"#,
];
/// Prints the size of the program and the number of files of the data. Arguments: the program, the folder of the data.
const MEASURE: &str = r#"
wc -c < "$1"
test -z "$2" || find "$2" -type f -exec printf 'x%.0s' {} + | wc -c
"#;

/// The report of the first host about a job.
struct JobOnFirstHost {
    /// The address of the newest coordinator.
    address: String,
    token: String,
    /// The folder with the run file and its data.
    inputs: Option<PathBuf>,
}

impl JobOnFirstHost {
    fn parse(text: &str, first: &SshConnection) -> Result<Self, SubmitError> {
        let lines = |label: &'static str| {
            text.lines()
                .filter_map(move |line| line.strip_prefix(label))
        };
        let command = lines("command ").next().unwrap_or_default();
        let command: ProcessCommand = serde_json::from_str(command).map_err(|error| {
            first.failed(format!("the command of the job is not valid: {error}"))
        })?;
        let newest = lines("coordinator ").filter_map(|line| {
            let (since, address) = line.trim().split_once(' ')?;
            Some((since.parse::<u64>().ok()?, address.to_owned()))
        });
        let (Some((_, address)), Some(token)) = (newest.max(), lines("token ").next()) else {
            return Err(SubmitError::invalid(
                "other hosts cannot join this run, because it has no coordinator",
                "set `elastic.enabled = true` in the run file",
            ));
        };
        if address.starts_with("127.") || address.starts_with("[::1]") {
            return Err(SubmitError::invalid(
                format!("other hosts cannot join the job: its coordinator listens at {address}"),
                "set `address` of the target to the address of the first host in the network, and submit the job again",
            ));
        }
        let run_file = command.arguments.get(1).map(Path::new);
        let folder = run_file
            .filter(|path| path.is_absolute())
            .and_then(Path::parent);
        let is_copy = |folder: &&Path| folder.parent().is_some_and(|all| all.ends_with("inputs"));
        Ok(Self {
            address,
            token: token.trim().to_owned(),
            inputs: folder.filter(is_copy).map(Path::to_owned),
        })
    }
}

/// Starts an agent on a host, which need not have been one of the job. `may_be_separate`: whether checkpoints do not need a
/// folder that all hosts share. Returns the placement with the host.
pub(super) fn add(
    target: &SshTarget,
    job: &RemoteJob<'_>,
    host: &HostSlots,
    may_be_separate: bool,
) -> Result<JobPlacement, SubmitError> {
    let first = target.connection(&job.hosts[0].host);
    let connection = target.connection(&host.host);
    let folder = job.paths.folder().display().to_string();
    let described = first.call(&script(DESCRIBE, &[&folder]), Input::Nothing, ANSWER_MAX)?;
    let described = JobOnFirstHost::parse(&described, &first)?;
    let inputs = described
        .inputs
        .as_ref()
        .map(|path| path.display().to_string());
    let inputs = inputs.unwrap_or_default();
    let mark = target.mark(&job.paths);
    let probe = script(&PROBE.concat(), &[&folder, job.program, &inputs, &mark]);
    let answer = connection.call(&probe, Input::Nothing, ANSWER_MAX)?;
    let has = |label: &str| answer.lines().any(|line| line == label);
    if !has("shared") && !may_be_separate && job.hosts.len() == 1 {
        return Err(connection.failed(format!(
            "it does not share {folder} with `{}`, so that checkpoints cannot be complete\n  \
             help: set `folder` of the target to a shared folder, or `run.output` to an address",
            job.hosts[0].host
        )));
    }
    if has("other") {
        return Err(connection.failed(format!(
            "its folder {folder} belongs to another job, which may be running\n  help: submit this job with another `--name`"
        )));
    }
    copy(
        job.program,
        &inputs,
        (&first, &connection),
        (has("has-program"), has("has-inputs")),
    )?;
    check_facts(job, &first, (&host.host, &connection))?;
    let known = job.hosts.iter().position(|known| known.host == host.host);
    let number = known.unwrap_or(job.hosts.len());
    let drain = drain_sources::words(&target.settings.drain_on);
    start(job, &connection, (host, number), &described, drain)?;
    let mut hosts = job.hosts.to_vec();
    match hosts.get_mut(number) {
        Some(known) => known.slots = host.slots,
        None => hosts.push(PlacedHost {
            host: host.host.clone(),
            slots: host.slots,
        }),
    }
    Ok(JobPlacement::Ssh {
        hosts,
        folder: job.paths.folder().to_owned(),
        program: job.program.to_owned(),
    })
}

/// Copies the program and the data from the first host, unless the other one has them.
fn copy(
    program: &str,
    inputs: &str,
    (first, connection): (&SshConnection, &SshConnection),
    (has_program, has_inputs): (bool, bool),
) -> Result<(), SubmitError> {
    if has_program && has_inputs {
        return Ok(());
    }
    let measured = first.call(
        &script(MEASURE, &[program, inputs]),
        Input::Nothing,
        ANSWER_MAX,
    )?;
    let mut numbers = measured.split_whitespace();
    let (bytes, files) = (numbers.next().unwrap_or("0"), numbers.next().unwrap_or("0"));
    let parts = |path: &str| {
        let path = Path::new(path);
        let folder = path
            .parent()
            .unwrap_or(Path::new("/"))
            .display()
            .to_string();
        let name = path.file_name().unwrap_or_default();
        (folder, name.to_string_lossy().into_owned())
    };
    if !has_program {
        let sent = first.output(&shell_words::join(["cat", program]))?;
        let (folder, name) = parts(program);
        let store = script(STORE_PROGRAM, &[&folder, bytes, &name]);
        connection.call(&store, Input::Output(sent), COPY_MAX)?;
    }
    if !has_inputs {
        let words = ["tar", "-c", "-f", "-", "-C", inputs, "."];
        let sent = first.output(&shell_words::join(words))?;
        let (folder, name) = parts(inputs);
        let store = script(STORE_INPUTS, &[&folder, &name, files]);
        connection.call(&store, Input::Output(sent), COPY_MAX)?;
    }
    Ok(())
}

/// Refuses a host that cannot train the bits of the first one.
fn check_facts(
    job: &RemoteJob<'_>,
    first: &SshConnection,
    (name, connection): (&str, &SshConnection),
) -> Result<(), SubmitError> {
    let facts = |connection: &SshConnection| {
        let call = shell_words::join([job.program, "__job", "facts"]);
        let answer = connection.call(&call, Input::Nothing, ANSWER_MAX)?;
        connection.parse::<HostFacts>(&answer)
    };
    let (mine, new) = (facts(first)?, facts(connection)?);
    let version = mine.version.clone();
    facts::check(&version, &[(job.hosts[0].host.as_str(), mine), (name, new)])
}

fn start(
    job: &RemoteJob<'_>,
    connection: &SshConnection,
    (host, number): (&HostSlots, usize),
    described: &JobOnFirstHost,
    drain: Vec<String>,
) -> Result<(), SubmitError> {
    let logs = job.paths.process_path(number).display().to_string();
    let slots = host.slots.to_string();
    let words = [
        "join",
        &described.address,
        "--token-file",
        TOKEN_WORD,
        "-n",
        &slots,
    ];
    let more = ["--host", &host.host, "--logs", &logs];
    let words = words.into_iter().chain(more).map(str::to_owned);
    let order = StartOrder {
        folder: job.paths.process_path(number),
        command: ProcessCommand {
            arguments: words.chain(drain).collect(),
            directory: job.paths.folder().to_owned(),
        },
        token: Some(described.token.clone()),
        leads: None,
        is_elastic: true,
    };
    let text = serde_json::to_vec(&order).map_err(|error| connection.failed(error.to_string()))?;
    let call = shell_words::join([job.program, "__job", "start"]);
    let answer = connection.call(&call, Input::Bytes(&text), START_MAX)?;
    let report: StartReport = connection.parse(&answer)?;
    match report.state {
        ProcessState::Running { .. } => Ok(()),
        _ => Err(connection.failed(format!("its agent has ended: {}", report.output.trim()))),
    }
}

/// Lets the workers of a host finish their step and leave.
pub(super) fn drain(
    target: &SshTarget,
    job: &RemoteJob<'_>,
    host: &str,
    grace: Duration,
) -> Result<(), SubmitError> {
    let number = job.hosts.iter().position(|known| known.host == host);
    let Some(number) = number.filter(|number| *number > 0) else {
        return Err(SubmitError::invalid(
            format!("host `{host}` has no agent of the job"),
            "the first host has the launcher, which ends with the job",
        ));
    };
    let folder = job.paths.process_path(number).display().to_string();
    let grace_s = grace.as_secs().to_string();
    let call = shell_words::join([job.program, "__job", "stop", "--grace", &grace_s, &folder]);
    let connection = target.connection(host);
    let ended = connection.call(&call, Input::Nothing, grace + ANSWER_MAX * 2);
    ended.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_needs_the_newest_coordinator_the_token_and_the_folder_of_the_data() {
        let dir = tempfile::tempdir().unwrap();
        let first = SshConnection::new("a", &[], dir.path());
        let text = |address: &str| {
            format!(
                "command {{\"arguments\":[\"train\",\"/x/inputs/abc/run.toml\"],\"directory\":\"/\"}}\n\
                 coordinator 5 10.0.0.1:1\ncoordinator 9 {address}\ntoken secret\n"
            )
        };
        let found = JobOnFirstHost::parse(&text("10.0.0.1:2"), &first).unwrap();
        assert_eq!(
            (found.address.as_str(), found.token.as_str()),
            ("10.0.0.1:2", "secret")
        );
        assert_eq!(found.inputs.as_deref(), Some(Path::new("/x/inputs/abc")));
        let local = JobOnFirstHost::parse(&text("127.0.0.1:2"), &first)
            .err()
            .unwrap();
        assert!(local.to_string().contains("set `address`"), "{local}");
        let fixed =
            JobOnFirstHost::parse("command {\"arguments\":[],\"directory\":\"/\"}\n", &first);
        assert!(fixed.err().unwrap().to_string().contains("no coordinator"));
    }
}
