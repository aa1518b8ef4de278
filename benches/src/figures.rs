//! All that was measured: for each contestant and workload, the numbers of every run.

/// The runs so far.
#[derive(Debug)]
pub(crate) struct Figures<Contestant>(Vec<Figure<Contestant>>);

#[derive(Debug)]
struct Figure<Contestant> {
    contestant: Contestant,
    workload: &'static str,
    name: String,
    number: f64,
}

impl<Contestant> Default for Figures<Contestant> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

/// One contestant's figure: the median of its runs, and the least and the most of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl<Contestant: Copy + PartialEq> Figures<Contestant> {
    /// Takes in the line of a process, `name=number name=number`.
    pub(crate) fn add(&mut self, contestant: Contestant, workload: &'static str, line: &str) {
        for word in line.split_whitespace() {
            if let Some((name, number)) = word.split_once('=')
                && let Ok(number) = number.parse()
            {
                self.0.push(Figure { contestant, workload, name: name.to_owned(), number });
            }
        }
    }

    /// None if it was not measured.
    pub(crate) fn summary(
        &self,
        contestant: Contestant,
        workload: &str,
        name: &str,
    ) -> Option<Summary> {
        let mut numbers: Vec<f64> = self
            .0
            .iter()
            .filter(|figure| {
                figure.contestant == contestant
                    && figure.workload == workload
                    && figure.name == name
            })
            .map(|figure| figure.number)
            .collect();
        numbers.sort_unstable_by(f64::total_cmp);
        let middle = numbers.len() / 2;
        let above = *numbers.get(middle)?;
        let below = *numbers.get(numbers.len().saturating_sub(1) / 2)?;
        Some(Summary {
            median: f64::midpoint(below, above),
            least: *numbers.first()?,
            most: *numbers.last()?,
        })
    }
}

/// With three digits that say something.
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
