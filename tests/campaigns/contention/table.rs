//! The table of a campaign: a column for each setting, a row for each figure.

use std::fmt;

#[derive(Debug)]
pub(crate) struct Table {
    title: &'static str,
    columns: Vec<&'static str>,
    /// The name of each row, and its figures. Rows come in the order in which they were first named.
    rows: Vec<(&'static str, Vec<u64>)>,
}

impl Table {
    pub(crate) fn new(title: &'static str, columns: impl IntoIterator<Item = &'static str>) -> Table {
        Table {
            title,
            columns: columns.into_iter().collect(),
            rows: Vec::new(),
        }
    }

    /// Adds to a figure.
    pub(crate) fn add(&mut self, column: &str, row: &'static str, count: u64) {
        *self.figure(column, row) += count;
    }

    /// Keeps the larger one.
    pub(crate) fn at_least(&mut self, column: &str, row: &'static str, value: u64) {
        let figure = self.figure(column, row);
        *figure = value.max(*figure);
    }

    fn figure(&mut self, column: &str, row: &'static str) -> &mut u64 {
        let column = self.columns.iter().position(|name| *name == column);
        let place = self.rows.iter().position(|(name, _)| *name == row);
        let place = place.unwrap_or_else(|| {
            self.rows.push((row, vec![0; self.columns.len()]));
            self.rows.len() - 1
        });
        &mut self.rows[place].1[column.expect("a known column")]
    }

    /// The sum of a row over all columns.
    pub(crate) fn sum(&self, row: &str) -> u64 {
        let figures = self.rows.iter().filter(|(name, _)| *name == row);
        figures.flat_map(|(_, figures)| figures).sum()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<50}", self.title)?;
        for column in &self.columns {
            write!(f, " {column:>10}")?;
        }
        writeln!(f)?;
        for (name, figures) in &self.rows {
            write!(f, "{name:<50}")?;
            for figure in figures {
                write!(f, " {figure:>10}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
