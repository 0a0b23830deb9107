//! `ronde coordinator`: leads an open job, or stands by.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::Args;
use ronde_cluster::{CoordinatorOutcome, JobEnding, StopFlag, coordinate};
use ronde_core::{Event, Tracker};
use ronde_tracking::Terminal;

use crate::command::console::{console, info, message};
use crate::command::exit;
use crate::command::job::find;

/// Arguments of `ronde coordinator`.
#[derive(Args)]
pub(crate) struct CoordinatorArguments {
    /// Folder of the job or of its results.
    #[arg(long, value_name = "FOLDER")]
    job: PathBuf,
    /// Listen at this address only [default: the last coordinator's address if it is free].
    #[arg(long, value_name = "ADDRESS", value_parser = listen_address)]
    listen: Option<SocketAddr>,
    /// A launcher has started this coordinator, and decides when it ends.
    #[arg(long, hide = true)]
    pub(crate) launched: bool,
}

/// Parses `ADDRESS` or `ADDRESS:PORT`.
pub(crate) fn listen_address(text: &str) -> Result<SocketAddr, String> {
    let with_port = text.parse::<SocketAddr>();
    let address = match with_port {
        Ok(address) => address,
        Err(_) => text
            .parse::<IpAddr>()
            .map(|ip| SocketAddr::new(ip, 0))
            .map_err(|_| "expected an address such as 10.0.0.1 or 10.0.0.1:4711".to_owned())?,
    };
    if address.ip().is_unspecified() {
        return Err("expected the one address at which other hosts reach this host".to_owned());
    }
    Ok(address)
}

pub(crate) fn coordinator(arguments: &CoordinatorArguments, stop: &StopFlag) -> i32 {
    let folder = match find::folder(&arguments.job) {
        Ok(folder) => folder,
        Err(message) => {
            message!("{message}");
            return exit::USER_ERROR;
        }
    };
    let terminal = Terminal::stderr(false, console().verbosity);
    let tracker: &dyn Tracker = &terminal;
    let listen = match arguments.listen {
        Some(listen) => listen,
        None => {
            let before = folder.coordinators().unwrap_or_default();
            let free = before
                .into_iter()
                .find(|address| std::net::TcpListener::bind(address).is_ok());
            free.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 0)))
        }
    };
    let concluded = coordinate(&folder, listen, tracker, stop, &mut |address| {
        tracker.record(Event::Notice {
            rank: None,
            message: format!("coordinator of {} at {address}", folder.spec().job),
        });
    });
    terminal.finish();
    match concluded {
        Ok(CoordinatorOutcome::Over { ending, reason }) => {
            info!("{reason}");
            match ending {
                JobEnding::Failed => exit::GAVE_UP,
                _ => exit::DONE,
            }
        }
        Ok(CoordinatorOutcome::Left { signal }) => {
            info!("this coordinator ends; the job continues and waits for another one");
            128 + signal
        }
        Err(error) => crate::command::failure::job_failure(&error),
    }
}
