//! [`TextTable`]: rows of cells in aligned columns.

use std::fmt;

use comfy_table::{Cell, CellAlignment, presets};

/// A table without lines, with two spaces between its columns and none at the ends of its lines. As text it ends without a
/// line break.
///
/// The width of a cell is its width in a terminal, where some characters have two columns.
#[derive(Debug, Clone)]
pub struct TextTable {
    rows: comfy_table::Table,
    indent: String,
}

impl TextTable {
    /// Creates a table whose first line has these names of columns.
    #[must_use]
    pub fn new(head: impl IntoIterator<Item: ToString>) -> Self {
        let mut table = Self::without_head();
        table.row(head);
        table
    }

    /// Creates a table whose columns have no names.
    #[must_use]
    pub fn without_head() -> Self {
        let mut rows = comfy_table::Table::new();
        rows.load_style(presets::NOTHING);
        let indent = String::new();
        Self { rows, indent }
    }

    /// Returns the table with a number of spaces before each line.
    #[must_use]
    pub fn indented(mut self, spaces: usize) -> Self {
        self.indent = " ".repeat(spaces);
        self
    }

    /// Returns the table with columns that are aligned at the right, for numbers. Columns that the head does not have stay
    /// aligned at the left.
    #[must_use]
    pub fn right(mut self, columns: impl IntoIterator<Item = usize>) -> Self {
        for index in columns {
            if let Some(column) = self.rows.column_mut(index) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        self
    }

    /// Adds a row.
    pub fn row(&mut self, row: impl IntoIterator<Item: ToString>) {
        let cells: Vec<Cell> = row.into_iter().map(Cell::new).collect();
        self.rows.add_row(cells);
        for column in self.rows.column_iter_mut() {
            column.set_padding((0, 2));
        }
    }

    /// Returns the lines.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let line = |line: String| format!("{}{line}", self.indent).trim_end().to_owned();
        self.rows.lines().map(line)
    }
}

impl fmt::Display for TextTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines().collect::<Vec<_>>().join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cells() {
        let mut table = TextTable::new(["name", "value", "note"])
            .right([1])
            .indented(1);
        table.row(["日本", "1.5", ""]);
        table.row(["a", "20.25", "two\nlines"]);
        assert_eq!(
            table.to_string(),
            " name  value  note\n 日本    1.5\n a     20.25  two\n              lines"
        );
        assert_eq!(TextTable::without_head().to_string(), "");
    }
}
