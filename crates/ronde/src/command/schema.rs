//! `ronde schema`: prints the JSON Schema of the run file, for editors.

use std::io::Write;

use super::console::{Printable, message};
use super::exit;

pub(crate) fn schema() -> i32 {
    let schema = ronde_train::config::schema::schema();
    match writeln!(Printable(std::io::stdout()), "{schema:#}") {
        Ok(()) => exit::DONE,
        Err(error) => {
            message!("error: cannot write standard output: {error}");
            exit::GAVE_UP
        }
    }
}
