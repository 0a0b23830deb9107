//! Tables for people: [`TextTable`].

mod table;

pub use table::TextTable;
