//! Writes `docs/collectives-cost.md` to its standard output.

use std::io::Write;

fn main() -> std::io::Result<()> {
    std::io::stdout().write_all(ronde_schedule::cost_page().as_bytes())
}
