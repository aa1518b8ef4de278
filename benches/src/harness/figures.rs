//! The figures of a report: for each subject, size and workload, the numbers of every run.

/// A floor, this repository's code or a peer, measured in a process of its own.
pub(crate) trait Subject: Copy + PartialEq + Send + Sync + 'static {
    /// The name in tables and plots.
    fn name(self) -> String;

    fn is_ours(self) -> bool;
}

/// What is measured, and its size if the workload has sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case<S> {
    pub(crate) subject: S,
    pub(crate) size: usize,
}

/// The numbers of all runs so far.
#[derive(Debug)]
pub(crate) struct Figures<S>(Vec<Figure<S>>);

#[derive(Debug)]
struct Figure<S> {
    case: Case<S>,
    workload: &'static str,
    name: String,
    number: f64,
}

/// The median of the runs, and the least and the most of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl<S: Copy + PartialEq> Figures<S> {
    pub(crate) fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds the line of a measuring process, `name=number name=number`.
    pub(crate) fn add(&mut self, case: Case<S>, workload: &'static str, line: &str) {
        for word in line.split_whitespace() {
            if let Some((name, number)) = word.split_once('=')
                && let Ok(number) = number.parse()
            {
                self.0.push(Figure { case, workload, name: name.to_owned(), number });
            }
        }
    }

    /// `None` if it was not measured.
    pub(crate) fn summary(&self, case: Case<S>, workload: &str, name: &str) -> Option<Summary> {
        let is_asked_for = |figure: &&Figure<S>| {
            figure.case == case && figure.workload == workload && figure.name == name
        };
        let numbers: Vec<f64> = self.0.iter().filter(is_asked_for).map(|it| it.number).collect();
        Some(Summary {
            least: numbers.iter().copied().min_by(f64::total_cmp)?,
            most: numbers.iter().copied().max_by(f64::total_cmp)?,
            median: median(numbers),
        })
    }

    /// The median of the runs. `None` if it was not measured.
    pub(crate) fn median(&self, case: Case<S>, workload: &str, name: &str) -> Option<f64> {
        self.summary(case, workload, name).map(|summary| summary.median)
    }
}

/// The middle one, or the mean of the middle two.
pub(crate) fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_unstable_by(f64::total_cmp);
    let at = |place: usize| numbers.get(place).copied().unwrap_or(f64::NAN);
    f64::midpoint(at(numbers.len() / 2), at(numbers.len().saturating_sub(1) / 2))
}

/// The value that `permille` of a thousand do not exceed, of values in order.
pub(crate) fn at_permille<N: Copy>(values: &[N], permille: usize) -> Option<N> {
    values.get((values.len() * permille / 1000).min(values.len().saturating_sub(1))).copied()
}

/// With three significant digits.
pub(crate) fn number(number: f64) -> String {
    let digits = match number.abs() {
        0.0 => 0,
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    format!("{number:.digits$}")
}

/// With a comma between thousands.
pub(crate) fn grouped(number: usize) -> String {
    if number < 1000 {
        return number.to_string();
    }
    format!("{},{:03}", grouped(number / 1000), number % 1000)
}
