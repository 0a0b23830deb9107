//! Serves the runs of a folder, without the `ronde` command: `serve FOLDER [PORT]`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use ronde_dashboard::{RunLibrary, ServerSettings, serve};
use ronde_identity::AccessToken;

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "an example")]
fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments
        .next()
        .map_or_else(|| PathBuf::from("runs"), PathBuf::from);
    let port = arguments.next().and_then(|port| port.parse().ok());
    let serving = || -> Result<(), Box<dyn std::error::Error>> {
        let library = Arc::new(RunLibrary::open(&folder)?);
        let settings = ServerSettings {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, port.unwrap_or(0))),
            token: AccessToken::random()?,
        };
        serve(library, settings, |_, url| println!("{url}"), || false)?;
        Ok(())
    };
    match serving() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
