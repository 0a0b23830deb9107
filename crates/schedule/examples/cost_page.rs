//! Prints `docs/collectives-cost.md`.

use std::io::Write;

fn main() -> std::io::Result<()> {
    std::io::stdout().write_all(ronde_schedule::cost_page().as_bytes())
}
