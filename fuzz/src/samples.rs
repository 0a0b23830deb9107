//! Writes the initial corpus for fuzzing: `corpus/<target>/<number>`.

use std::path::Path;

use ronde_fuzz::targets::ALL;

fn main() -> std::io::Result<()> {
    for target in ALL {
        let folder = Path::new("corpus").join(target.name);
        std::fs::create_dir_all(&folder)?;
        for (number, sample) in (target.samples)().iter().enumerate() {
            std::fs::write(folder.join(number.to_string()), sample)?;
        }
    }
    Ok(())
}
