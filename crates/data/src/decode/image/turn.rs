//! Turns pixels from the stored to the shown orientation.

use super::pixels::{Channels, PixelSize};
use crate::picture::Orientation;

/// Writes the pixels of a stored image as they are shown.
pub(super) fn turn(
    stored: &[u8],
    size: PixelSize,
    channels: Channels,
    orientation: Orientation,
    out: &mut Vec<u8>,
) {
    out.clear();
    out.reserve(stored.len());
    match channels {
        Channels::Grey => turn_pixels(stored.as_chunks::<1>().0, size, orientation, out),
        Channels::Rgb => turn_pixels(stored.as_chunks::<3>().0, size, orientation, out),
    }
}

fn turn_pixels<const N: usize>(
    stored: &[[u8; N]],
    PixelSize { width, height }: PixelSize,
    orientation: Orientation,
    out: &mut Vec<u8>,
) {
    let (rows, columns) = (height as usize, width as usize);
    let (shown_columns, shown_rows) = orientation.shown_size((width, height));
    for shown_row in 0..shown_rows as usize {
        for shown_column in 0..shown_columns as usize {
            let (mut row, mut column) = match orientation.swaps_sides() {
                true => (shown_column, shown_row),
                false => (shown_row, shown_column),
            };
            if orientation.flips_rows() {
                row = rows - 1 - row;
            }
            if orientation.flips_columns() {
                column = columns - 1 - column;
            }
            out.extend_from_slice(&stored[row * columns + column]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_orientation_shows_the_first_pixel_where_exif_says() {
        // Three columns and two rows: the letters as they are stored, then as they are shown.
        let size = PixelSize {
            width: 3,
            height: 2,
        };
        let shown = [
            "abcdef", "cbafed", "fedcba", "defabc", "adbecf", "daebfc", "fcebda", "cfbead",
        ];
        for (number, expected) in (1..).zip(shown) {
            let mut out = Vec::new();
            turn(
                b"abcdef",
                size,
                Channels::Grey,
                Orientation::new(number),
                &mut out,
            );
            assert_eq!(String::from_utf8(out).unwrap(), expected, "{number}");
        }
        let mut out = Vec::new();
        let colours = b"aAxbBxcCxdDxeExfFx";
        turn(colours, size, Channels::Rgb, Orientation::new(6), &mut out);
        assert_eq!(out, b"dDxaAxeExbBxfFxcCx");
    }
}
