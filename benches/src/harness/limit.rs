//! The limit that a figure is held against, and the verdict.

use crate::harness::figures::Subject;
use crate::harness::figures::{Case, Figures, number};

/// A number of its own, or one that comes from what else was measured.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit<S: 'static> {
    AtMost(f64),
    AtLeast(f64),
    /// At most this many times the smallest figure of these subjects; and what to call that.
    Times(f64, &'static [S], &'static str),
    /// At least this many times the smallest figure of these subjects; and what to call that.
    LeastTimes(f64, &'static [S], &'static str),
    /// The greater of a number and [`Limit::Times`].
    AtMostOrTimes(f64, f64, &'static [S], &'static str),
    /// At most this many times its own figure in another workload.
    TimesItself(f64, &'static str),
    /// At most a number and this many times another measure of it; and what to call the sum.
    Sum(f64, f64, &'static str, &'static str),
}

/// A figure beside its limit. Either is `None` if it was not measured.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) figure: Option<f64>,
    pub(crate) limit: Option<f64>,
    /// The limit in words.
    pub(crate) text: String,
    pub(crate) is_met: Option<bool>,
}

impl<S: Subject> Limit<S> {
    pub(crate) fn judge(
        self,
        figures: &Figures<S>,
        case: Case<S>,
        workload: &str,
        measure: &str,
        unit: &str,
    ) -> Verdict {
        let smallest = |subjects: &[S]| {
            let others = subjects.iter().map(|&subject| Case { subject, ..case });
            let figure = |other| figures.median(other, workload, measure);
            others.filter_map(figure).min_by(f64::total_cmp)
        };
        let (limit, origin) = match self {
            Self::AtMost(limit) | Self::AtLeast(limit) => (Some(limit), String::new()),
            Self::Times(times, subjects, name) | Self::LeastTimes(times, subjects, name) => {
                (smallest(subjects).map(|other| times * other), format!(" = {times} x {name}"))
            }
            Self::AtMostOrTimes(limit, times, subjects, name) => match smallest(subjects) {
                Some(other) if times * other > limit => {
                    (Some(times * other), format!(" = {times} x {name}"))
                }
                _ => (Some(limit), String::new()),
            },
            Self::TimesItself(times, other) => (
                figures.median(case, other, measure).map(|itself| times * itself),
                format!(" = {times} x itself in {other}"),
            ),
            Self::Sum(constant, times, other, name) => (
                figures.median(case, workload, other).map(|other| constant + times * other),
                format!(" = {name}"),
            ),
        };
        let figure = figures.median(case, workload, measure);
        let is_met = figure
            .zip(limit)
            .map(|(figure, limit)| if self.is_least() { figure >= limit } else { figure <= limit });
        let word = if self.is_least() { "at least" } else { "at most" };
        let text = format!("{word} {}{origin}", with_unit(limit, unit));
        Verdict { figure, limit, text, is_met }
    }

    pub(crate) fn is_least(self) -> bool {
        matches!(self, Self::AtLeast(_) | Self::LeastTimes(..))
    }
}

/// The number with its unit, or a dash if it was not measured.
pub(crate) fn with_unit(value: Option<f64>, unit: &str) -> String {
    value.map_or_else(
        || "-".to_owned(),
        |value| format!("{} {unit}", number(value)).trim_end().to_owned(),
    )
}

pub(crate) fn word(is_met: bool) -> &'static str {
    if is_met { "met" } else { "**missed**" }
}
