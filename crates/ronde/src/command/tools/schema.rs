//! `ronde schema`: prints the JSON Schema of the run file, for editors.

use crate::command::console::print;

pub(crate) fn schema() -> i32 {
    let schema = ronde_train::config::schema::schema();
    print(format_args!("{schema:#}"))
}
