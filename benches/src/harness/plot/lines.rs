//! A plot of lines as SVG, with two logarithmic axes.

use crate::harness::figures::grouped;
use crate::harness::plot::{OURS, escape, heading, svg};

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 480.0;
const LEFT: f64 = 90.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 56.0;
/// Room for the names of the lines.
const RIGHT: f64 = 210.0;
/// The least distance between two names.
const NAME_STEP: f64 = 18.0;
const COLOURS: [&str; 4] = ["#475569", "#0e7490", "#7c3aed", "#4d7c0f"];

/// One subject's figures.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) name: String,
    /// Ours have a colour of their own.
    pub(crate) is_ours: bool,
    /// A size and a figure each. All are above zero.
    pub(crate) points: Vec<(f64, f64)>,
}

/// The text of a file. `None` if there is nothing to draw.
pub(crate) fn draw(title: &str, unit: &str, below: &str, lines: &[Line]) -> Option<String> {
    let points = || lines.iter().flat_map(|line| line.points.iter());
    let across = Axis::over(points().map(|(x, _)| *x), LEFT, WIDTH - RIGHT)?;
    let up = Axis::over(points().map(|(_, y)| *y), HEIGHT - BOTTOM, TOP)?;
    let mut body = vec![heading(title, unit, 28.0)];
    for (label, x) in across.marks() {
        body.push(format!(
            r##"<line x1="{x:.1}" y1="{TOP}" x2="{x:.1}" y2="{:.1}" stroke="#e2e8f0"/><text x="{x:.1}" y="{:.1}" text-anchor="middle" fill="#525252">{}</text>"##,
            HEIGHT - BOTTOM,
            HEIGHT - BOTTOM + 20.0,
            label
        ));
    }
    for (label, y) in up.marks() {
        body.push(format!(
            r##"<line x1="{LEFT}" y1="{y:.1}" x2="{:.1}" y2="{y:.1}" stroke="#e2e8f0"/><text x="{:.1}" y="{:.1}" text-anchor="end" fill="#525252">{}</text>"##,
            WIDTH - RIGHT,
            LEFT - 8.0,
            y + 5.0,
            label
        ));
    }
    body.push(format!(
        r##"<text x="{:.1}" y="{:.1}" text-anchor="middle" fill="#1a1a1a">{}</text>"##,
        f64::midpoint(LEFT, WIDTH - RIGHT),
        HEIGHT - 12.0,
        escape(below)
    ));
    draw_lines(lines, &across, &up, &mut body);
    Some(svg(WIDTH, HEIGHT, &body))
}

fn draw_lines(lines: &[Line], across: &Axis, up: &Axis, body: &mut Vec<String>) {
    let mut names = Vec::new();
    for (line, colour) in lines.iter().zip(COLOURS.iter().cycle()) {
        let (colour, width) = if line.is_ours { (OURS, 4) } else { (*colour, 2) };
        let coordinates: Vec<(f64, f64)> =
            line.points.iter().map(|(x, y)| (across.coordinate(*x), up.coordinate(*y))).collect();
        let path: Vec<String> = coordinates.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        body.push(format!(
            r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="{width}"/>"#,
            path.join(" ")
        ));
        body.extend(coordinates.iter().map(|(x, y)| {
            format!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="{}" fill="{colour}"/>"#, width + 1)
        }));
        if let Some((_, y)) = coordinates.last() {
            names.push((*y, &line.name, colour));
        }
    }
    names.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut next = 0.0;
    for (y, name, colour) in names {
        next = y.max(next);
        body.push(format!(
            r#"<text x="{:.1}" y="{:.1}" fill="{colour}">{}</text>"#,
            WIDTH - RIGHT + 12.0,
            next + 5.0,
            escape(name)
        ));
        next += NAME_STEP;
    }
}

/// From one power of ten to another, between two coordinates.
#[derive(Debug)]
struct Axis {
    first: i32,
    last: i32,
    from: f64,
    to: f64,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Option<Self> {
        let powers: Vec<f64> = values.filter(|value| *value > 0.0).map(f64::log10).collect();
        let lowest = powers.iter().copied().min_by(f64::total_cmp)?;
        let highest = powers.iter().copied().max_by(f64::total_cmp)?;
        let first = (-30..30).rev().find(|power| f64::from(*power) <= lowest)?;
        let last = (-30..30).find(|power| f64::from(*power) >= highest)?;
        Some(Self { first, last: last.max(first + 1), from, to })
    }

    fn coordinate(&self, value: f64) -> f64 {
        let part = (value.log10() - f64::from(self.first)) / f64::from(self.last - self.first);
        self.from + part * (self.to - self.from)
    }

    /// Every power of ten with its coordinate.
    fn marks(&self) -> impl Iterator<Item = (String, f64)> + '_ {
        (self.first..=self.last).map(|power| {
            let value = 10_f64.powi(power);
            let label = match (u32::try_from(power), usize::try_from(-power)) {
                (Ok(power), _) => grouped(10_usize.saturating_pow(power)),
                (_, Ok(digits)) => format!("{value:.digits$}"),
                _ => String::new(),
            };
            (label, self.coordinate(value))
        })
    }
}
