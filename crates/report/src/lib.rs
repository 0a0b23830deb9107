//! Tables and charts for people: [`TextTable`] as text, and [`Chart`] as SVG. [`ChartAxis`] has the ticks of drawings of either kind.

mod axis;
mod chart;
mod table;

pub use axis::{ChartAxis, Scale};
pub use chart::{Chart, Colour, Curve, CurveStyle, Panel, Point};
pub use table::TextTable;
