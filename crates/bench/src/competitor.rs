//! [`CompetitorProcess`]: the comparison script under mpirun, whose ranks are connected and wait
//! for their turns.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::BenchError;
use crate::error::missing;
use crate::mpi_launcher::MpiLauncher;
use crate::output_tail::tail;
use crate::settings::Competitor;
use crate::turns::{CompetitorReply, CompetitorTurn, LineConnection};

/// The script, a copy of the file in `benchmarks/`.
const SCRIPT: &str = include_str!("../../../benchmarks/gloo_and_mpi_all_reduce.py");
/// The number of bytes of error output that are kept.
const TAIL_BYTES: usize = 4 << 10;
/// Prefixes of variables with which a launcher describes its own ranks. The inner mpirun must not take them for its own:
/// it starts its ranks on this host.
const LAUNCHER_PREFIXES: [&str; 8] = [
    "OMPI_", "PMIX_", "PMI_", "PRTE_", "HYDRA_", "HYDI_", "MPI_", "SLURM_",
];
/// The time in which its ranks must exit after their connections are closed.
const LEAVE_MAX: Duration = Duration::from_secs(5);

/// The options of the comparison script.
#[derive(Debug, Clone)]
pub struct CompetitorLaunch<'a> {
    /// A Python with mpi4py, numpy and torch.
    pub python: &'a OsStr,
    /// The competitors to measure.
    pub against: &'a [Competitor],
    /// The number of ranks.
    pub ranks: usize,
    /// The seed of the random data.
    pub seed: u64,
    /// The socket to which they connect.
    pub socket: &'a Path,
    /// The folder for the script.
    pub folder: &'a Path,
}

/// The comparison script under mpirun.
pub struct CompetitorProcess {
    child: Child,
    /// The MPI of its ranks, with its version.
    mpi: String,
    /// The connections, indexed by rank.
    lines: Vec<Option<LineConnection>>,
    /// The thread that collects the end of its error output.
    errors: Option<JoinHandle<String>>,
}

impl fmt::Debug for CompetitorProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "mpirun, process {}, {} ranks",
            self.child.id(),
            self.lines.len()
        )
    }
}

impl CompetitorProcess {
    /// Starts all ranks.
    ///
    /// # Errors
    /// [`BenchError::Competitor`] with the missing program or Python module and what to install.
    pub fn start(start: &CompetitorLaunch<'_>) -> Result<Self, BenchError> {
        check_modules(start)?;
        let launcher = MpiLauncher::find()?;
        launcher.check_python(start.python)?;
        let script = start.folder.join("gloo_and_mpi_all_reduce.py");
        crate::report::write(&script, SCRIPT)?;
        let foreign = start.against.iter().filter(|one| one.is_foreign());
        let names: Vec<&str> = foreign.map(|one| one.name()).collect();
        let mut command = Command::new("mpirun");
        command
            .args(launcher.arguments())
            .args(["-n", &start.ranks.to_string()])
            .arg(start.python)
            .arg(script)
            .arg("--turns")
            .arg(start.socket)
            .args([
                "--backends",
                &names.join(","),
                "--seed",
                &start.seed.to_string(),
                "--ranks",
                &start.ranks.to_string(),
            ])
            .env("OMP_NUM_THREADS", "1")
            .envs(launcher.variables().iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        for (name, _) in std::env::vars_os() {
            let begins = |prefix: &str| name.as_encoded_bytes().starts_with(prefix.as_bytes());
            if LAUNCHER_PREFIXES.into_iter().any(begins) {
                command.env_remove(name);
            }
        }
        let mut child = command.spawn().map_err(|error| {
            missing(
                &format!("cannot start mpirun: {error}"),
                "check that it is executable",
            )
        })?;
        let errors = child.stderr.take();
        let errors = errors.map(|pipe| std::thread::spawn(move || tail(pipe, TAIL_BYTES)));
        Ok(Self {
            child,
            mpi: launcher.title().to_owned(),
            lines: (0..start.ranks).map(|_| None).collect(),
            errors,
        })
    }

    /// Returns the MPI of the ranks, with its version.
    #[must_use]
    pub fn mpi(&self) -> &str {
        &self.mpi
    }

    /// Returns whether all ranks are connected.
    pub(crate) fn are_complete(&self) -> bool {
        self.lines.iter().all(Option::is_some)
    }

    pub(crate) fn enter(&mut self, rank: usize, line: LineConnection) -> Result<(), BenchError> {
        let slot = self.lines.get_mut(rank);
        let slot = slot.ok_or_else(|| {
            BenchError::channel("start the competitors", "an unknown process connected")
        })?;
        *slot = Some(line);
        Ok(())
    }

    /// Checks that they are still running.
    pub(crate) fn check(&mut self) -> Result<(), BenchError> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(self.failure(&format!("mpirun ended: {status}"))),
            Err(error) => Err(self.failure(&format!("cannot poll mpirun: {error}"))),
        }
    }

    /// Starts a turn on all ranks, and waits for rank 0's timings.
    pub(crate) fn turn(
        &mut self,
        turn: CompetitorTurn,
        go_on: &dyn Fn() -> bool,
    ) -> Result<CompetitorReply, BenchError> {
        self.check()?;
        for line in self.lines.iter_mut().flatten() {
            if let Err(error) = line.send(&turn) {
                return Err(self.failure(&format!("lost a rank of {}: {error}", turn.backend)));
            }
        }
        let Some(first) = self.lines.first_mut().and_then(Option::as_mut) else {
            return Err(self.failure("rank 0 is not connected"));
        };
        match first.receive(go_on) {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err(self.failure(&format!("{} failed", turn.backend))),
            Err(error) => Err(self.failure(&format!("no reply from {}: {error}", turn.backend))),
        }
    }

    /// Returns an error with the end of the ranks' output, after ending them.
    pub(crate) fn failure(&mut self, problem: &str) -> BenchError {
        self.end();
        let lines_read = self.errors.take().and_then(|errors| errors.join().ok());
        let text = lines_read.unwrap_or_default();
        let lines: Vec<&str> = text
            .lines()
            .map(str::trim_end)
            .filter(|l| !l.is_empty())
            .collect();
        // Some lines are mpirun's own, about a rank that failed.
        let last = &lines[lines.len().saturating_sub(30)..];
        let mut problem = problem.to_owned();
        for line in last {
            problem += "\n  | ";
            problem += line;
        }
        missing(
            &problem,
            "does `mpirun -n 2 python3 benchmarks/gloo_and_mpi_all_reduce.py` run? --python names \
             another Python; leave --against out to measure ronde alone",
        )
    }

    /// Closes the connections, whereupon the ranks exit, and kills those that do not.
    fn end(&mut self) {
        for line in self.lines.iter().flatten() {
            // The rank may have exited already.
            let _ = line.stream().shutdown(std::net::Shutdown::Both);
        }
        let deadline = ronde_clock::now() + LEAVE_MAX;
        while ronde_clock::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            ronde_clock::pause(Duration::from_millis(10));
        }
        // Ending mpirun ends its ranks too.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for CompetitorProcess {
    fn drop(&mut self) {
        self.end();
    }
}

/// Checks that Python has the required modules, without loading them.
fn check_modules(start: &CompetitorLaunch<'_>) -> Result<(), BenchError> {
    const ASK: &str = "import sys, importlib.util as u\n\
                       print(*[m for m in sys.argv[1:] if u.find_spec(m) is None])";
    let mut modules = vec!["numpy", "mpi4py"];
    if start.against.contains(&Competitor::Gloo) {
        modules.push("torch");
    }
    let arguments: [OsString; 2] = ["-c".into(), ASK.into()];
    let probe = Command::new(start.python)
        .args(arguments)
        .args(&modules)
        .output();
    let python = start.python.display();
    let probe = probe.map_err(|error| {
        let problem = format!("cannot start {python}: {error}");
        missing(
            &problem,
            "install Python 3, or set its path with --python PATH",
        )
    })?;
    let output = String::from_utf8_lossy(&probe.stdout);
    match output.trim() {
        _ if !probe.status.success() => {
            let problem = String::from_utf8_lossy(&probe.stderr);
            let problem = format!("{python} does not work: {}", problem.trim());
            Err(missing(&problem, "set another Python with --python PATH"))
        }
        "" => Ok(()),
        absent => {
            let problem = format!("{python} lacks the modules {}", absent.replace(' ', ", "));
            let hint = format!(
                "{python} -m pip install {absent}, or set another Python with --python PATH"
            );
            Err(missing(&problem, &hint))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_python_and_missing_modules_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |python: &Path| {
            let start = CompetitorLaunch {
                python: python.as_os_str(),
                against: &Competitor::ALL,
                ranks: 2,
                seed: 1,
                socket: folder.path(),
                folder: folder.path(),
            };
            let error = CompetitorProcess::start(&start).unwrap_err();
            assert!(error.is_user_error());
            error.to_string()
        };
        let error = refused(Path::new("/no/python"));
        assert!(error.contains("cannot start /no/python"), "{error}");
        assert!(error.contains("help: install Python 3"), "{error}");
        // A program that answers as Python does when a module is missing.
        let script = folder.path().join("python");
        std::fs::write(&script, "#!/bin/sh\necho torch\n").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&script, mode).unwrap();
        let error = refused(&script);
        assert!(error.contains("lacks the modules torch"), "{error}");
        assert!(error.contains("pip install torch"), "{error}");
    }
}
