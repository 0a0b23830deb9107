//! Loads a saved model and computes its outputs for one sample. Usage: `load_model FOLDER`.

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use ronde_engine::Activation;
use ronde_saved_model::SavedModel;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).unwrap_or(".".to_owned());
    let saved = SavedModel::open(folder)?;
    let mut model = saved.chain()?;
    let shape = [&[1], &saved.manifest().input_shape[..]].concat();
    let sample = vec![0.0; shape.iter().product()];
    let outputs = model.evaluate(Activation::from_host(&shape, sample))?;
    println!("{:?}", outputs.as_slice());
    Ok(())
}
