//! [`MpiLauncher`]: the program `mpirun`, recognised by its version, and whether a Python's MPI belongs to it.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::error::BenchError;
use crate::error::missing;
use crate::output_tail::tail;

/// The time in which a program must report its version; a Python loads the library of MPI for it.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// The number of bytes of an answer that are kept.
const ANSWER_BYTES: usize = 16 << 10;
/// Prints the first line of the version of the library that mpi4py was built for, without starting it.
const LIBRARY: &str = "import mpi4py\nmpi4py.rc.initialize = False\nfrom mpi4py import MPI\n\
                       print(MPI.Get_library_version().splitlines()[0])";

/// The implementations of MPI whose programs start each other's ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MpiFamily {
    /// Open MPI of a major version.
    OpenMpi(u32),
    /// MPICH, Intel MPI and others with its launcher Hydra.
    Mpich,
    /// Another one, with only `-n` known.
    Other,
}

/// The program `mpirun` that is first in the path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MpiLauncher {
    family: MpiFamily,
    /// Its name and version.
    title: String,
}

impl MpiLauncher {
    /// Asks `mpirun` for its version.
    ///
    /// # Errors
    /// [`BenchError::Competitor`]: it is not installed or does not answer.
    pub(crate) fn find() -> Result<Self, BenchError> {
        let mut command = Command::new("mpirun");
        let (text, errors) = answer(command.arg("--version"), "mpirun --version")?;
        Ok(Self::parse(&format!("{text}{errors}")))
    }

    /// Parses the output of `mpirun --version`.
    fn parse(text: &str) -> Self {
        let first = text.lines().map(str::trim).find(|line| !line.is_empty());
        let first = first.unwrap_or("no version");
        let (family, title) = if let Some((_, version)) = text.split_once("(Open MPI)") {
            let version = version.split_whitespace().next().unwrap_or_default();
            let major = version
                .split('.')
                .next()
                .and_then(|major| major.parse().ok());
            let family = MpiFamily::OpenMpi(major.unwrap_or(0));
            (family, format!("Open MPI {version}"))
        } else if text.contains("Intel(R) MPI") {
            let version = text.split_once("Version ").map_or("", |(_, rest)| rest);
            let version = version.split_whitespace().next().unwrap_or_default();
            (MpiFamily::Mpich, format!("Intel MPI {version}"))
        } else if text.contains("HYDRA build details") {
            let version = text.split_once("Version:").map_or("", |(_, rest)| rest);
            let version = version.split_whitespace().next().unwrap_or_default();
            (MpiFamily::Mpich, format!("MPICH (Hydra {version})"))
        } else {
            (MpiFamily::Other, format!("`{first}`"))
        };
        Self {
            family,
            title: title.trim_end().to_owned(),
        }
    }

    /// Returns the name and the version.
    pub(crate) fn title(&self) -> &str {
        &self.title
    }

    /// Returns the arguments with which ranks share the cores of this host and memory, and give way to each other.
    pub(crate) fn arguments(&self) -> Vec<&'static str> {
        match self.family {
            MpiFamily::OpenMpi(major) => {
                let memory = if major >= 5 { "self,sm" } else { "self,vader" };
                vec![
                    "--allow-run-as-root",
                    "--oversubscribe",
                    "--bind-to",
                    "none",
                    "--mca",
                    "mpi_yield_when_idle",
                    "1",
                    "--mca",
                    "btl",
                    memory,
                ]
            }
            // Hydra binds no rank and starts any number of them.
            MpiFamily::Mpich | MpiFamily::Other => Vec::new(),
        }
    }

    /// Returns the variables with the same effect. Other implementations ignore them.
    pub(crate) fn variables(&self) -> &'static [(&'static str, &'static str)] {
        match self.family {
            MpiFamily::Mpich => &[
                ("I_MPI_PIN", "0"),
                ("I_MPI_FABRICS", "shm"),
                ("I_MPI_THREAD_YIELD", "2"),
            ],
            MpiFamily::OpenMpi(_) | MpiFamily::Other => &[],
        }
    }

    /// Checks that mpi4py of a Python was built for this implementation: ranks that another one has started do not find each
    /// other.
    ///
    /// # Errors
    /// [`BenchError::Competitor`]: it was built for another one, or cannot be loaded.
    pub(crate) fn check_python(&self, python: &OsStr) -> Result<(), BenchError> {
        let shown = python.display().to_string();
        let mut command = Command::new(python);
        let (library, _) = answer(command.args(["-c", LIBRARY]), &format!("mpi4py of {shown}"))?;
        match self.problem_with(library.trim()) {
            None => Ok(()),
            Some(problem) => Err(missing(
                &format!("mpi4py of {shown} {problem}"),
                &format!(
                    "put the mpirun of that MPI first in PATH, or build mpi4py for {}: {shown} -m pip install --no-binary \
                     mpi4py --force-reinstall mpi4py",
                    self.title
                ),
            )),
        }
    }

    /// Returns why ranks with a library cannot be started by this launcher.
    fn problem_with(&self, library: &str) -> Option<String> {
        let of_open_mpi = library.contains("Open MPI");
        let of_mpich = ["MPICH", "Intel(R) MPI", "MVAPICH"]
            .iter()
            .any(|name| library.contains(name));
        let differs = match self.family {
            MpiFamily::OpenMpi(_) => of_mpich,
            MpiFamily::Mpich => of_open_mpi,
            MpiFamily::Other => false,
        };
        let library = library.split(", ").next().unwrap_or(library);
        differs.then(|| {
            format!(
                "was built for another MPI than mpirun: {}, but mpirun is of {}",
                library.split_whitespace().collect::<Vec<_>>().join(" "),
                self.title
            )
        })
    }
}

/// Runs a program to its end and returns its standard output and error.
fn answer(command: &mut Command, what: &str) -> Result<(String, String), BenchError> {
    let started = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = started.map_err(|error| match error.kind() {
        ErrorKind::NotFound => missing(
            "mpirun is not installed",
            "install Open MPI: apt install openmpi-bin libopenmpi-dev",
        ),
        _ => missing(
            &format!("cannot start {what}: {error}"),
            "check that it is executable",
        ),
    })?;
    let (output, errors) = (child.stdout.take(), child.stderr.take());
    let output = output.map(|pipe| std::thread::spawn(move || tail(pipe, ANSWER_BYTES)));
    let errors = errors.map(|pipe| std::thread::spawn(move || tail(pipe, ANSWER_BYTES)));
    let deadline = ronde_clock::now() + ANSWER_MAX;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if ronde_clock::now() < deadline => {
                ronde_clock::pause(Duration::from_millis(5))
            }
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
        }
    };
    let help = "leave --against out to measure ronde alone";
    let Some(status) = status else {
        let limit = ANSWER_MAX.as_secs();
        return Err(missing(
            &format!("{what} did not end within {limit} s"),
            help,
        ));
    };
    let [output, errors] = [output, errors].map(|thread| {
        let text = thread.and_then(|thread| thread.join().ok());
        text.unwrap_or_default()
    });
    match status.success() {
        true => Ok((output, errors)),
        false => Err(missing(
            &format!("{what} does not work: {}", errors.trim()),
            "set another Python with --python PATH, or put another mpirun first in PATH",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN_MPI: &str =
        "mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n";
    const OPEN_MPI_5: &str = "mpirun (Open MPI) 5.0.3\n";
    const INTEL: &str =
        "Intel(R) MPI Library for Linux* OS, Version 2021.11 Build 20231005\nCopyright 2003-2023\n";
    const MPICH: &str =
        "HYDRA build details:\n    Version:                                 4.0.2\n";

    #[test]
    fn launchers_are_recognised_by_their_version() {
        for (text, family, title) in [
            (OPEN_MPI, MpiFamily::OpenMpi(4), "Open MPI 4.1.4"),
            (OPEN_MPI_5, MpiFamily::OpenMpi(5), "Open MPI 5.0.3"),
            (INTEL, MpiFamily::Mpich, "Intel MPI 2021.11"),
            (MPICH, MpiFamily::Mpich, "MPICH (Hydra 4.0.2)"),
            (
                "slurm-wlm 22.05.8\n",
                MpiFamily::Other,
                "`slurm-wlm 22.05.8`",
            ),
            ("", MpiFamily::Other, "`no version`"),
        ] {
            let found = MpiLauncher::parse(text);
            assert_eq!((found.family, found.title()), (family, title));
            let has_open_mpi_flags = found.arguments().contains(&"--allow-run-as-root");
            assert_eq!(has_open_mpi_flags, title.starts_with("Open MPI"), "{title}");
        }
        let memory = |text| MpiLauncher::parse(text).arguments().pop();
        assert_eq!(memory(OPEN_MPI), Some("self,vader"));
        assert_eq!(memory(OPEN_MPI_5), Some("self,sm"));
    }

    #[test]
    fn a_library_of_another_implementation_is_refused() {
        let open_mpi = "Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4";
        let intel = "Intel(R) MPI Library 2021.11 for Linux* OS";
        let mpich = "MPICH Version:\t4.0.2";
        let problem = |launcher, library| MpiLauncher::parse(launcher).problem_with(library);
        assert_eq!(problem(OPEN_MPI, open_mpi), None);
        assert_eq!(
            problem(INTEL, mpich),
            None,
            "they can start each other's ranks"
        );
        assert_eq!(problem(MPICH, intel), None);
        assert_eq!(problem("unknown", open_mpi), None);
        assert_eq!(
            problem(INTEL, open_mpi).as_deref(),
            Some(
                "was built for another MPI than mpirun: Open MPI v4.1.4, but mpirun is of Intel MPI 2021.11"
            )
        );
        let found = problem(OPEN_MPI, mpich).unwrap();
        assert!(
            found.contains("MPICH Version: 4.0.2, but mpirun is of Open MPI 4.1.4"),
            "{found}"
        );
    }

    #[test]
    fn programs_that_fail_or_do_not_exist_are_reported() {
        let failed = answer(
            Command::new("sh").args(["-c", "echo broken >&2; exit 1"]),
            "sh",
        );
        assert!(
            failed
                .unwrap_err()
                .to_string()
                .contains("sh does not work: broken")
        );
        let absent = answer(&mut Command::new("/no/mpirun"), "mpirun --version");
        assert!(
            absent
                .unwrap_err()
                .to_string()
                .contains("mpirun is not installed")
        );
    }
}
