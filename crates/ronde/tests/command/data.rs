//! `ronde data`: folders are packed into shards, and shards shown; what is packed can be trained on.

use crate::support::Place;

const JPEG: &[u8] = include_bytes!("../../../data/tests/vectors/pattern.jpg");
const PNG: &[u8] = include_bytes!("../../../data/tests/vectors/pattern.png");

fn place() -> Place {
    let place = Place::new();
    for (class, image) in [("cat", JPEG), ("dog", PNG)] {
        let folder = place.path().join("images").join(class);
        std::fs::create_dir_all(&folder).unwrap();
        for number in 0..4 {
            let ending = if class == "cat" { "jpg" } else { "png" };
            std::fs::write(folder.join(format!("{number}.{ending}")), image).unwrap();
        }
    }
    place
}

#[test]
fn folders_are_packed_and_shards_are_shown() {
    let place = place();
    let packed = place
        .run(&["data", "pack", "images", "out", "--shard-size", "3KiB"])
        .expect(
            0,
            &[
                "packed 8 samples into 2 shards",
                "2 classes, from \"cat\" on",
            ],
        );
    assert!(
        packed.stdout.contains("train = \"out/train-*\""),
        "{}",
        packed.stdout
    );
    assert!(
        packed
            .stdout
            .contains("label = { field = \"image/class/label\", classes = 2 }")
    );
    assert_eq!(
        place.list("out"),
        ["train-00000-of-00002", "train-00001-of-00002"]
    );
    place.run(&["data", "pack", "images", "out"]).expect(
        2,
        &["error: out: train-00000-of-00002 is there already; --force replaces"],
    );
    let seen = place
        .run(&["data", "inspect", "out/train-*", "--samples", "2"])
        .expect(0, &[]);
    for word in [
        "tfrecord version 1",
        "samples       8",
        "image/class/text",
        " 64 x 48, ",
        "sample 1",
    ] {
        assert!(seen.stdout.contains(word), "{word:?} in\n{}", seen.stdout);
    }
    assert!(!seen.stdout.contains("sample 2"));
}

#[test]
fn what_cannot_be_used_is_listed() {
    let place = place();
    place
        .run(&["data", "pack", "images", "out", "--keep-order"])
        .expect(0, &[]);
    let shard = place.path().join("out/train-00000-of-00001");
    let mut bytes = std::fs::read(&shard).unwrap();
    bytes[1200] ^= 1;
    std::fs::write(&shard, bytes).unwrap();
    let seen = place.run(&["data", "inspect", "out"]).expect(0, &[]);
    assert!(seen.stdout.contains("samples       7"), "{}", seen.stdout);
    assert!(
        seen.stdout.contains("1 records cannot be used:"),
        "{}",
        seen.stdout
    );
    assert!(
        seen.stdout.contains("at byte 0: its bytes are damaged"),
        "{}",
        seen.stdout
    );
}

#[test]
fn mistakes_are_told() {
    let place = place();
    place
        .run(&["data", "inspect", "nothing-*"])
        .expect(2, &["nothing-*"]);
    place.run(&["data", "inspect"]).expect(2, &["ADDRESSES"]);
    place.write("file.bin", "x");
    place
        .run(&["data", "inspect", "file.bin"])
        .expect(2, &["set data.format"]);
    place
        .run(&["data", "pack", "images", "out", "--format", "zip"])
        .expect(2, &["no format"]);
    place
        .run(&["data", "pack", "images", "out", "--shard-size", "3 tons"])
        .expect(2, &["no unit"]);
}
