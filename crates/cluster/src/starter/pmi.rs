//! [`exchange_by_pmi`]: tells all ranks the address of rank 0 through the process managers of MPICH and Intel MPI, whose
//! variables name no host. The protocol is PMI-1 (lines of `key=value` words over an inherited socket), of which five requests
//! are used.
//!
//! The bindings of MPI would need its library to be built.

use std::io::{BufRead, BufReader, Error, Result, Write};
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use ronde_core::Rank;

/// The name of the address among the values of the job.
const KEY: &str = "ronde-rendezvous";
/// Time limit for the answer to a request; the slowest one waits until all ranks have started.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// The maximum length of an answer in bytes.
const ANSWER_BYTES_MAX: usize = 4096;

/// Returns the socket to the process manager, from its number in `PMI_FD`.
///
/// # Errors
/// The number is not that of a socket of this process.
#[cfg(target_os = "linux")]
pub fn pmi_socket(descriptor: RawFd) -> Result<UnixStream> {
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

    let this = pidfd_open(getpid(), PidfdFlags::empty())?;
    let copy = pidfd_getfd(&this, descriptor, PidfdGetfdFlags::empty())?;
    Ok(UnixStream::from(copy))
}

/// Does the same where an inherited descriptor cannot be copied: fails.
///
/// # Errors
/// Always.
#[cfg(not(target_os = "linux"))]
pub fn pmi_socket(_descriptor: RawFd) -> Result<UnixStream> {
    Err(std::io::ErrorKind::Unsupported.into())
}

/// Publishes `own` as the address of rank 0 if this is rank 0, waits for all ranks, and returns the address. Ends the session
/// with the process manager, so that a process can do it once.
///
/// # Errors
/// The process manager does not answer in time, or has another protocol.
pub fn exchange_by_pmi(socket: UnixStream, rank: Rank, own: &str) -> Result<String> {
    socket.set_read_timeout(Some(ANSWER_MAX))?;
    let mut session = PmiSession {
        answers: BufReader::new(socket.try_clone()?),
        requests: socket,
    };
    session.call("init pmi_version=1 pmi_subversion=1", "response_to_init")?;
    let space = session.call("get_my_kvsname", "my_kvsname")?;
    let space = field(&space, "kvsname")?;
    if rank.0 == 0 {
        let put = format!("put kvsname={space} key={KEY} value={own}");
        session.call(&put, "put_result")?;
    }
    session.call("barrier_in", "barrier_out")?;
    let found = session.call(&format!("get kvsname={space} key={KEY}"), "get_result")?;
    let address = field(&found, "value")?;
    session.call("finalize", "finalize_ack")?;
    Ok(address)
}

struct PmiSession {
    answers: BufReader<UnixStream>,
    requests: UnixStream,
}

impl PmiSession {
    /// Sends a request and returns the answer, which must be of this kind.
    fn call(&mut self, request: &str, kind: &str) -> Result<String> {
        self.requests
            .write_all(format!("cmd={request}\n").as_bytes())?;
        let mut answer = Vec::new();
        let mut limited = std::io::Read::take(&mut self.answers, ANSWER_BYTES_MAX as u64);
        limited.read_until(b'\n', &mut answer)?;
        let answer = String::from_utf8_lossy(&answer).trim().to_owned();
        let is_good = field(&answer, "cmd").is_ok_and(|found| found == kind)
            && field(&answer, "rc").map_or(true, |code| code == "0");
        match is_good {
            true => Ok(answer),
            false => Err(Error::other(format!(
                "the process manager has answered `{}` to `{request}`",
                answer.escape_debug()
            ))),
        }
    }
}

/// Returns a value of an answer.
fn field(answer: &str, name: &str) -> Result<String> {
    let value = answer.split_whitespace().find_map(|word| {
        let (key, value) = word.split_once('=')?;
        (key == name).then(|| value.to_owned())
    });
    value.ok_or_else(|| Error::other(format!("`{}` has no `{name}`", answer.escape_debug())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process manager with these answers, which returns the requests.
    fn manager(
        answers: &'static [&'static str],
    ) -> (UnixStream, std::thread::JoinHandle<Vec<String>>) {
        let (mine, theirs) = UnixStream::pair().unwrap();
        let thread = std::thread::spawn(move || {
            let mut requests = Vec::new();
            let mut reader = BufReader::new(mine.try_clone().unwrap());
            for answer in answers {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                requests.push(line.trim().to_owned());
                (&mine).write_all(format!("{answer}\n").as_bytes()).unwrap();
            }
            requests
        });
        (theirs, thread)
    }

    #[test]
    fn rank_0_publishes_its_address_and_all_ranks_get_it() {
        let answers = &[
            "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
            "cmd=my_kvsname kvsname=kvs_1",
            "cmd=put_result rc=0 msg=success",
            "cmd=barrier_out",
            "cmd=get_result rc=0 msg=success value=n1:4711",
            "cmd=finalize_ack",
        ];
        let (socket, thread) = manager(answers);
        let found = exchange_by_pmi(socket, Rank(0), "n1:4711").unwrap();
        assert_eq!(found, "n1:4711");
        let requests = thread.join().unwrap();
        assert_eq!(
            requests[2],
            "cmd=put kvsname=kvs_1 key=ronde-rendezvous value=n1:4711"
        );
        assert_eq!(requests[4], "cmd=get kvsname=kvs_1 key=ronde-rendezvous");
    }

    #[test]
    fn other_answers_are_errors() {
        for answers in [
            &["cmd=response_to_init rc=-1"][..],
            &["hello"][..],
            &[""][..],
            &["cmd=response_to_init rc=0", "cmd=my_kvsname"][..],
        ] {
            let (socket, thread) = manager(answers);
            let error = exchange_by_pmi(socket, Rank(1), "x:1").unwrap_err();
            assert!(error.to_string().contains('`'), "{error}");
            thread.join().unwrap();
        }
    }

    #[test]
    fn an_inherited_descriptor_is_a_socket() {
        let (mine, theirs) = UnixStream::pair().unwrap();
        let descriptor = std::os::fd::AsRawFd::as_raw_fd(&theirs);
        let mut copy = pmi_socket(descriptor).unwrap();
        copy.write_all(b"x\n").unwrap();
        let mut line = String::new();
        BufReader::new(mine).read_line(&mut line).unwrap();
        assert_eq!(line, "x\n");
        assert!(pmi_socket(-1).is_err());
    }
}
