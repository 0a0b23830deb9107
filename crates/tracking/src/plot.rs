//! Drawings of a [`LossCurve`](crate::LossCurve): as text for a terminal, and as SVG.

mod svg;
mod text;

pub use svg::svg;
pub use text::{Characters, text};
