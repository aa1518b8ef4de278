//! What a report measures: workloads with their subjects and measures, and the targets of this
//! repository.

use crate::harness::figures::{Case, Subject};
use crate::harness::limit::Limit;

/// The size in a workload that has no sizes.
pub(crate) const NO_SIZE: usize = 0;

/// One thing to do, and the subjects that do it.
#[derive(Debug)]
pub(crate) struct Workload<S: 'static> {
    /// What the measuring process is told, and what `--only` takes.
    pub(crate) name: &'static str,
    pub(crate) subjects: Vec<S>,
    /// The columns of its tables, or [`NO_SIZE`] alone.
    pub(crate) sizes: Vec<usize>,
    pub(crate) measures: Vec<Measure<S>>,
}

impl<S: Subject> Workload<S> {
    pub(crate) fn has_sizes(&self) -> bool {
        self.sizes != [NO_SIZE]
    }
}

/// One number of a workload.
#[derive(Clone, Debug)]
pub(crate) struct Measure<S: 'static> {
    /// The row of the report that it belongs to, if its rows are numbered.
    pub(crate) row: &'static str,
    pub(crate) title: String,
    /// As the measuring process calls it.
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    /// With a smaller size the number means nothing.
    pub(crate) least_size: usize,
    pub(crate) is_plotted: bool,
    pub(crate) targets: Vec<Target<S>>,
}

impl<S: 'static> Measure<S> {
    pub(crate) fn new(title: impl Into<String>, name: &'static str, unit: &'static str) -> Self {
        let (row, title, targets) = ("", title.into(), Vec::new());
        Self { row, title, name, unit, least_size: NO_SIZE, is_plotted: true, targets }
    }

    pub(crate) fn with_targets(self, targets: Vec<Target<S>>) -> Self {
        Self { targets, ..self }
    }

    pub(crate) fn not_plotted(self) -> Self {
        Self { is_plotted: false, ..self }
    }
}

/// What a subject has to reach.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target<S: 'static> {
    pub(crate) subject: S,
    pub(crate) limit: Limit<S>,
}

/// A subject of a workload without sizes.
pub(crate) fn unsized_case<S>(subject: S) -> Case<S> {
    Case { subject, size: NO_SIZE }
}
