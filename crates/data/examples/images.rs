//! Prints decoded images for comparison by other programs: `images rgb|grey FILE..`.
//!
//! A line for each file: width and height of the image as it is shown, and its levels (0 to 255) in hexadecimal digits, one
//! plane per channel.

use std::io::Write;

use ronde_data::decode::{DecodeScratch, Features, ImageDecoder};
use ronde_data::picture::Picture;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let channels: usize = match arguments.next().as_deref() {
        Some("rgb") => 3,
        Some("grey") => 1,
        _ => return Err("images rgb|grey FILE..".into()),
    };
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut scratch = DecodeScratch::new();
    for path in arguments {
        let encoded = std::fs::read(&path)?;
        let Picture { width, height, .. } = Picture::of(&encoded).ok_or("not an image")?;
        let features = serde_json::json!({ "decode": "image", "shape": [channels, height, width] });
        let Features::Image(features) = serde_json::from_value(features)? else {
            return Err("images are decoded".into());
        };
        let decoder = ImageDecoder::new(&features)?;
        let mut levels = vec![0.0; decoder.elements()];
        let decoded = decoder.decode_for_evaluation(&encoded, &mut scratch, &mut levels);
        decoded.map_err(|problem| format!("{path}: {problem}"))?;
        write!(out, "{width} {height} ")?;
        for level in levels {
            write!(out, "{:02x}", (level * 255.0).round() as u8)?;
        }
        writeln!(out)?;
    }
    Ok(())
}
