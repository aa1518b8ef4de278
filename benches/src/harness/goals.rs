//! A table of figures with the goals that some of them have.

use std::fmt;
use std::time::Duration;

use crate::harness::figures::number;

/// One line of the table.
pub(crate) struct Row {
    letter: char,
    what: String,
    figure: String,
    /// What is to be reached, and whether it is.
    goal: Option<(&'static str, bool)>,
}

impl Row {
    pub(crate) fn new(letter: char, what: impl Into<String>, figure: String) -> Self {
        Self { letter, what: what.into(), figure, goal: None }
    }

    pub(crate) fn goal(self, goal: &'static str, is_met: bool) -> Self {
        Self { goal: Some((goal, is_met)), ..self }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { letter, what, figure, goal } = self;
        let (goal, verdict) = match goal {
            Some((goal, true)) => (*goal, "met"),
            Some((goal, false)) => (*goal, "**missed**"),
            None => ("", ""),
        };
        writeln!(formatter, "| {letter} | {what} | {figure} | {goal} | {verdict} |")
    }
}

/// All rows, under a head.
pub(crate) fn goal_table(rows: impl IntoIterator<Item = Row>) -> String {
    let mut text = String::from("| row | what | figure | goal | |\n|---|---|---:|---|---|\n");
    for row in rows {
        text.push_str(&row.to_string());
    }
    text
}

pub(crate) fn micros(time: Duration) -> String {
    format!("{} us", number(time.as_secs_f64() * 1e6))
}

pub(crate) fn millis(time: Duration) -> String {
    format!("{} ms", number(time.as_secs_f64() * 1e3))
}
