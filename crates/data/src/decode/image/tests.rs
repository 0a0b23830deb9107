//! Images of every kind compared with the drawn pattern, keyed randomness, damage and limits.

use super::*;
use crate::decode::tests::image_features;
use crate::decode::{DecodeScratch, Features, Label, RecordDecoder, SampleUse, Schema};
use crate::format::{Record, Value};

const JPEG: &[u8] = include_bytes!("../../../tests/vectors/pattern.jpg");
const PROGRESSIVE: &[u8] = include_bytes!("../../../tests/vectors/progressive.jpg");
const GREY: &[u8] = include_bytes!("../../../tests/vectors/grey.jpg");
const CMYK: &[u8] = include_bytes!("../../../tests/vectors/cmyk.jpg");
const PNG: &[u8] = include_bytes!("../../../tests/vectors/pattern.png");
const ALPHA: &[u8] = include_bytes!("../../../tests/vectors/alpha.png");
const PALETTE: &[u8] = include_bytes!("../../../tests/vectors/palette.png");
const WEBP: &[u8] = include_bytes!("../../../tests/vectors/pattern.webp");
const LOSSLESS: &[u8] = include_bytes!("../../../tests/vectors/lossless.webp");

/// Returns the pattern in the test files: red increases to the right, green downwards.
fn drawn(channel: usize, y: usize, x: usize) -> f32 {
    (match channel {
        0 => x * 4,
        1 => y * 5,
        _ => (x + y) * 2,
    }) as f32
}

fn decoder(features: &str, role: SampleUse) -> RecordDecoder {
    let label: Label = toml::from_str("classes = 2").unwrap();
    let schema = Schema {
        features: Features::Image(image_features(features)),
        label: Some(label),
    };
    RecordDecoder::new(&schema, role, 42).unwrap()
}

fn decode(
    decoder: &RecordDecoder,
    encoded: &[u8],
    epoch: u64,
    sample: u64,
) -> Result<Vec<f32>, String> {
    let fields = vec![
        ("class".into(), Value::integers(&[1])),
        ("image".into(), Value::Bytes(encoded.into())),
    ];
    let mut out = vec![f32::NAN; decoder.sample_shape().iter().product()];
    let (record, mut targets) = (Record { fields }, [9]);
    let mut scratch = DecodeScratch::new();
    let decoded = decoder.decode(&record, epoch, sample, &mut scratch, &mut out, &mut targets);
    decoded.map_err(|error| error.to_string())?;
    assert_eq!(targets, [1]);
    Ok(out)
}

#[test]
fn images_of_every_kind_match_the_drawn_pattern() {
    let plain = decoder(
        "shape = [3, 48, 64]\nstd = [0.00392156862, 0.00392156862, 0.00392156862]",
        SampleUse::Train,
    );
    for (name, encoded, tolerance) in [
        ("jpeg", JPEG, 14.0),
        ("progressive", PROGRESSIVE, 14.0),
        ("cmyk", CMYK, 40.0),
        ("png", PNG, 0.01),
        ("alpha", ALPHA, 0.01),
        ("palette", PALETTE, 52.0),
        ("webp", WEBP, 20.0),
        ("lossless webp", LOSSLESS, 0.01),
    ] {
        let out = decode(&plain, encoded, 0, 0).unwrap();
        for (at, value) in out.iter().enumerate() {
            let expected = drawn(at / 3072, at / 64 % 48, at % 64);
            assert!(
                (value - expected).abs() <= tolerance,
                "{name} {at}: {value}, {expected}"
            );
        }
    }
    let grey = decoder(
        "shape = [1, 48, 64]\nstd = [0.00392156862]",
        SampleUse::Train,
    );
    for encoded in [GREY, JPEG, PNG, WEBP] {
        let out = decode(&grey, encoded, 0, 0).unwrap();
        for (at, value) in out.iter().enumerate() {
            let (y, x) = (at / 64, at % 64);
            let [red, green, blue] = [0, 1, 2].map(|channel| drawn(channel, y, x));
            let expected = 0.299 * red + 0.587 * green + 0.114 * blue;
            // Other weights of the colours are common, too.
            assert!(
                (value - expected).abs() <= 20.0,
                "{at}: {value}, {expected}"
            );
        }
    }
}

/// Returns images that are stored turned or in unusual colours, by name.
fn shown() -> [(&'static str, &'static [u8]); 9] {
    macro_rules! vectors {
        ($($name:literal),*) => {
            [$(($name, include_bytes!(concat!("../../../tests/vectors/shown/", $name)))),*]
        };
    }
    vectors![
        "cmyk.jpg",
        "named.jpg",
        "numbered.jpg",
        "rgb.jpg",
        "turned5.webp",
        "turned6.jpg",
        "turned8.png",
        "xmp3.jpg",
        "ycck.jpg"
    ]
}

/// Returns size and levels of an image as Pillow 13 shows them (`ImageOps.exif_transpose`), one plane per channel.
fn levels_of_pillow(name: &str, channels: usize) -> (usize, usize, Vec<f32>) {
    let all = include_str!("../../../tests/vectors/shown/pillow.json");
    let all: serde_json::Value = serde_json::from_str(all).unwrap();
    let side = |number: usize| all[name]["size"][number].as_u64().unwrap() as usize;
    let key = if channels == 3 { "rgb" } else { "grey" };
    let digits = all[name][key]
        .as_str()
        .unwrap()
        .as_bytes()
        .as_chunks::<2>()
        .0;
    let level = |digits: &[u8; 2]| {
        let digits = std::str::from_utf8(digits).unwrap();
        f32::from(u8::from_str_radix(digits, 16).unwrap())
    };
    let levels: Vec<f32> = digits.iter().map(level).collect();
    let planes = (0..channels).flat_map(|channel| levels[channel..].iter().step_by(channels));
    (side(0), side(1), planes.copied().collect())
}

#[test]
fn images_are_decoded_as_pillow_shows_them() {
    for (name, encoded) in shown() {
        for channels in [3, 1] {
            let (width, height, expected) = levels_of_pillow(name, channels);
            let picture = crate::picture::Picture::of(encoded).unwrap();
            assert_eq!(
                (picture.width as usize, picture.height as usize),
                (width, height)
            );
            let text = format!("shape = [{channels}, {height}, {width}]");
            let out = decode(&decoder(&text, SampleUse::Train), encoded, 0, 0).unwrap();
            // Inverse transformations of JPEG may round differently.
            let bound = if name.ends_with("jpg") { 3.5 } else { 0.01 };
            for (at, (value, expected)) in out.iter().zip(&expected).enumerate() {
                let level = value * 255.0;
                assert!(
                    (level - expected).abs() <= bound,
                    "{name}, {channels} channels, {at}: {level}, {expected}"
                );
            }
        }
    }
}

#[test]
fn areas_and_flips_refer_to_the_image_as_it_is_shown() {
    let turned = shown()[6].1;
    let (width, height, levels) = levels_of_pillow("turned8.png", 3);
    let pixel = |x: u32, y: u32| {
        let at = y as usize * width + x as usize;
        image::Rgb([0, 1, 2].map(|channel| levels[channel * width * height + at] as u8))
    };
    let upright = image::RgbImage::from_fn(width as u32, height as u32, pixel);
    let mut encoded = std::io::Cursor::new(Vec::new());
    upright
        .write_to(&mut encoded, image::ImageFormat::Png)
        .unwrap();
    for crop in ["random_resized", "random", "center"] {
        let text = format!("shape = [3, 4, 5]\nresize = 6\ncrop = '{crop}'\nflip = true");
        for role in [SampleUse::Train, SampleUse::Test] {
            let decoder = decoder(&text, role);
            for sample in 0..20 {
                let turned = decode(&decoder, turned, 1, sample).unwrap();
                let upright = decode(&decoder, encoded.get_ref(), 1, sample).unwrap();
                assert_eq!(turned, upright, "{crop}");
            }
        }
    }
}

#[test]
fn the_version_of_the_decoder_is_part_of_the_identity_of_images() {
    let images = decoder("shape = [3, 8, 8]", SampleUse::Test);
    assert_eq!(
        images.identity("records".to_owned()),
        "records, image decoder version 2"
    );
}

#[test]
fn values_are_normalised_by_channel() {
    let text = "shape = [3, 48, 64]\nmean = [0.5, 0.25, 0.0]\nstd = [0.5, 2.0, 1.0]";
    let out = decode(&decoder(text, SampleUse::Test), PNG, 0, 0).unwrap();
    for (channel, mean, std) in [(0, 0.5, 0.5), (1, 0.25, 2.0), (2, 0.0, 1.0)] {
        let expected = (drawn(channel, 7, 9) / 255.0 - mean) / std;
        assert!((out[channel * 3072 + 7 * 64 + 9] - expected).abs() < 1e-6);
    }
}

#[test]
fn crops_are_resized_and_evaluation_uses_the_centre() {
    let text = "shape = [3, 16, 16]\nresize = 24\ncrop = 'random_resized'\nflip = true\nstd = [0.00392156862, 0.00392156862, 0.00392156862]";
    let test = decoder(text, SampleUse::Test);
    let out = decode(&test, PNG, 0, 0).unwrap();
    // The central 32 x 32 pixels at half the size: each is a local mean.
    for (y, x) in [(0, 0), (5, 11), (15, 15)] {
        let (red, green) = (out[y * 16 + x], out[256 + y * 16 + x]);
        assert!(
            (red - (4.0 * (16.0 + 2.0 * x as f32) + 2.0)).abs() < 5.0,
            "{red} at {x}"
        );
        assert!(
            (green - (5.0 * (8.0 + 2.0 * y as f32) + 2.5)).abs() < 6.0,
            "{green} at {y}"
        );
    }
    assert_eq!(out, decode(&test, PNG, 3, 8).unwrap());
}

#[test]
fn randomness_is_keyed_by_epoch_and_sample() {
    let train = decoder(
        "shape = [3, 16, 16]\ncrop = 'random_resized'\nflip = true",
        SampleUse::Train,
    );
    let first = decode(&train, JPEG, 1, 2).unwrap();
    let others = [(1, 3), (2, 2), (0, 0)].map(|(e, s)| decode(&train, JPEG, e, s).unwrap());
    assert!(others.iter().all(|other| *other != first));
    assert_eq!(decode(&train, JPEG, 1, 2).unwrap(), first);
    let flip = decoder("shape = [3, 48, 64]\nflip = true", SampleUse::Train);
    let plain = decode(
        &decoder("shape = [3, 48, 64]\nflip = true", SampleUse::Test),
        PNG,
        0,
        0,
    )
    .unwrap();
    let mut turned = 0;
    for sample in 0..64 {
        let out = decode(&flip, PNG, 0, sample).unwrap();
        let is_turned = out != plain;
        turned += usize::from(is_turned);
        if is_turned {
            for (row, plain) in out.chunks(64).zip(plain.chunks(64)) {
                assert!(row.iter().eq(plain.iter().rev()));
            }
        }
    }
    assert!((16..48).contains(&turned), "{turned}");
}

#[test]
fn damaged_images_are_decoded_or_refused_without_a_panic() {
    let plain = decoder("shape = [3, 8, 8]", SampleUse::Train);
    let mut images = vec![JPEG, PROGRESSIVE, GREY, CMYK, PNG, PALETTE, WEBP, LOSSLESS];
    images.extend(shown().map(|(_, encoded)| encoded));
    for encoded in images {
        let whole = decode(&plain, encoded, 0, 0).unwrap();
        for at in 0..encoded.len() {
            for value in [0, 0xff, encoded[at] ^ 0x20] {
                let mut damaged = encoded.to_vec();
                damaged[at] = value;
                if let Ok(out) = decode(&plain, &damaged, 0, 0) {
                    assert!(out.iter().all(|value| (0.0..=1.0).contains(value)));
                }
            }
            // All pixels may be complete without the last bytes.
            match decode(&plain, &encoded[..at], 0, 0) {
                Ok(out) => assert_eq!(out, whole, "cut at {at}"),
                Err(problem) => assert!(problem.contains("image"), "{problem}"),
            }
        }
    }
    assert!(
        decode(&plain, b"GIF89a", 0, 0)
            .unwrap_err()
            .contains("not a JPEG, PNG or WebP")
    );
}

#[test]
fn hostile_sizes_are_refused_before_allocation() {
    let plain = decoder("shape = [3, 8, 8]", SampleUse::Train);
    let mut large = JPEG.to_vec();
    let frame = large
        .windows(2)
        .position(|pair| pair == [0xff, 0xc0])
        .unwrap();
    large[frame + 5..frame + 9].copy_from_slice(&[0x7f, 0xff, 0x7f, 0xff]);
    assert!(
        decode(&plain, &large, 0, 0)
            .unwrap_err()
            .contains("32767 x 32767")
    );
    large[frame + 5..frame + 9].copy_from_slice(&[0xff; 4]);
    assert!(decode(&plain, &large, 0, 0).is_err());
}

#[test]
fn invalid_settings_are_refused() {
    for (text, key) in [
        ("shape = [48, 64]", "features.shape"),
        ("shape = [2, 4, 4]", "features.shape"),
        ("shape = [3, 0, 4]", "features.shape"),
        ("shape = [3, 99999, 4]", "features.shape"),
        ("shape = [3, 8, 9]\nresize = 8", "features.resize"),
        ("shape = [3, 8, 9]\narea = [0.0, 1.0]", "features.area"),
        ("shape = [3, 8, 9]\narea = [0.5, 1.5]", "features.area"),
        ("shape = [3, 8, 9]\nmean = [0.5]", "features.mean"),
        ("shape = [1, 8, 9]\nstd = [0.0]", "features.std"),
        ("shape = [1, 8, 9]\nstd = [nan]", "features.std"),
    ] {
        let error = ImageDecoder::new(&image_features(text))
            .unwrap_err()
            .to_string();
        assert!(error.contains(&format!("data.{key}:")), "{error}");
    }
}
