//! Decodes the images of some files repeatedly on one thread and prints the rate: `decoding SECONDS FILE..`.
//!
//! As for training: a crop of random area, resized to 224 x 224, randomly flipped, normalised.

#![expect(clippy::print_stdout, reason = "it prints")]
#![expect(clippy::disallowed_methods, reason = "it measures")]

use std::time::Instant;

use ronde_data::decode::{
    Crop, DecodeScratch, Features, Fields, ImageFeatures, Label, RecordDecoder, SampleUse, Schema,
};
use ronde_data::format::{Record, Value};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let seconds: f64 = arguments.next().ok_or("decoding SECONDS FILE..")?.parse()?;
    let files: Vec<Vec<u8>> = arguments.map(std::fs::read).collect::<Result<_, _>>()?;
    let schema = Schema {
        features: Features::Image(ImageFeatures {
            field: "image".to_owned(),
            shape: vec![3, 224, 224],
            resize: Some(256),
            crop: Some(Crop::RandomResized),
            flip: true,
            area: [0.08, 1.0],
            mean: Some(vec![0.485, 0.456, 0.406]),
            std: Some(vec![0.229, 0.224, 0.225]),
        }),
        label: Some(Label {
            field: Fields::One("class".to_owned()),
            classes: Some(1),
            first: 0,
            names: None,
            values: None,
            scale: None,
        }),
    };
    let decoder = RecordDecoder::new(&schema, SampleUse::Train, 1)?;
    let (mut out, mut target) = (vec![0.0; 3 * 224 * 224], [0]);
    let (mut scratch, mut count) = (DecodeScratch::new(), 0_u64);
    let start = Instant::now();
    'all: for epoch in 0.. {
        for file in &files {
            let fields = vec![
                ("image".into(), Value::Bytes(file[..].into())),
                ("class".into(), Value::integers(&[0])),
            ];
            decoder.decode(
                &Record { fields },
                epoch,
                count,
                &mut scratch,
                &mut out,
                &mut target,
            )?;
            count += 1;
            if start.elapsed().as_secs_f64() >= seconds {
                break 'all;
            }
        }
    }
    println!("{:.1}", count as f64 / start.elapsed().as_secs_f64());
    Ok(())
}
