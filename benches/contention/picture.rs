//! The picture: throughput, and the longest wait, over the number of waiters.

use std::path::Path;

use fairlock_benches::Outcome;
use fairlock_benches::analysis::quantile;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::series::DashedLineSeries;

use crate::report::Line;
use crate::strategy::Strategy;

const WIDTH: u32 = 1100;
const PANELS_HEIGHT: u32 = 464;
const LEGEND_ROW: u32 = 26;
const LEGEND_COLUMNS: usize = 6;

/// With more curves than this, a second curve for each would only confuse.
const FEW: usize = 4;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn<'a> = Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;
type Value = fn(&Line) -> Option<f64>;

/// A value that is drawn over the number of waiters.
struct Panel {
    title: &'static str,
    unit: &'static str,
    solid: Value,
    dashed: Option<Value>,
}

const PANELS: [Panel; 2] = [
    Panel {
        title: "Hand-offs to another waiter",
        unit: "per second",
        solid: |line| Some(line.findings.handoffs_per_s()),
        dashed: Some(|line| Some(line.findings.acquisitions_per_s())),
    },
    Panel {
        title: "Longest wait",
        unit: "milliseconds",
        solid: |line| quantile(&line.findings.waits_ns, 1000).map(|ns| ns as f64 / 1e6),
        dashed: None,
    },
];

/// Draws the lines of the table as an SVG.
pub(crate) fn draw(path: &Path, lines: &[Line]) -> Outcome<()> {
    let mut strategies: Vec<Strategy> = Vec::new();
    for line in contended(lines) {
        if !strategies.contains(&line.strategy) {
            strategies.push(line.strategy);
        }
    }
    let curves: Vec<Curve> = strategies
        .iter()
        .map(|strategy| Curve::of(*strategy, &strategies))
        .collect();
    let legend = LEGEND_ROW * u32::try_from(curves.chunks(LEGEND_COLUMNS).len().max(1))? + 10;
    let root = SVGBackend::new(path, (WIDTH, legend + PANELS_HEIGHT)).into_drawing_area();
    all(&root, legend, &curves, lines).map_err(|e| format!("the picture could not be drawn: {e}").into())
}

fn all<'a>(root: &Area<'a>, legend: u32, curves: &[Curve], lines: &[Line]) -> Drawn<'a> {
    root.fill(&WHITE)?;
    let (top, rest) = root.split_vertically(legend);
    let places = top.split_evenly(((legend / LEGEND_ROW) as usize, LEGEND_COLUMNS));
    for (place, curve) in places.iter().zip(curves) {
        let y = 16;
        curve.draw(place, &[(20, y), (54, y)])?;
        place.draw(&Circle::new((37, y), curve.dot, curve.color.filled()))?;
        place.draw(&Text::new(curve.strategy.name(), (62, y - 7), ("sans-serif", 14)))?;
    }
    let (left, right) = rest.split_horizontally(WIDTH / 2);
    for (area, panel) in [left, right].iter().zip(&PANELS) {
        panel.draw(area, curves, lines)?;
    }
    root.present()
}

impl Panel {
    fn draw<'a>(&self, area: &Area<'a>, curves: &[Curve], lines: &[Line]) -> Drawn<'a> {
        let dashed = self.dashed.filter(|_| curves.len() <= FEW);
        let values = [Some(self.solid), dashed];
        let seen = contended(lines).flat_map(|line| values.iter().flatten().filter_map(|value| value(line)));
        let (min_y, max_y) = range(seen.filter(|y| *y > 0.0));
        let (min_x, max_x) = range(contended(lines).map(|line| f64::from(line.load.waiters)));

        let mut chart = ChartBuilder::on(area)
            .caption(
                match dashed {
                    Some(_) => format!("{} (dashed: all acquisitions)", self.title),
                    None => self.title.to_owned(),
                },
                ("sans-serif", 17),
            )
            .margin(12)
            .margin_right(24)
            .x_label_area_size(42)
            .y_label_area_size(70)
            .build_cartesian_2d(
                (min_x / 1.3..max_x * 1.3).log_scale().base(2.0),
                (power(min_y.log10().floor())..power((max_y * 1.05).log10().ceil())).log_scale(),
            )?;
        chart
            .configure_mesh()
            .x_desc("waiters")
            .y_desc(self.unit)
            .y_labels(6)
            .x_label_formatter(&|x| format!("{x:.0}"))
            .y_label_formatter(&|y| plain(*y))
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.12))
            .label_style(("sans-serif", 13))
            .draw()?;
        // The first curves are drawn last, so that they lie above the others.
        for curve in curves.iter().rev() {
            if let Some(dashed) = dashed {
                let points = points(lines, curve.strategy, dashed);
                chart.draw_series(DashedLineSeries::new(
                    points,
                    5,
                    4,
                    curve.color.mix(0.7).stroke_width(1),
                ))?;
            }
            let points = points(lines, curve.strategy, self.solid);
            match curve.dashes {
                None => chart.draw_series(LineSeries::new(points.clone(), curve.style()))?,
                Some((dash, gap)) => {
                    chart.draw_series(DashedLineSeries::new(points.clone(), dash, gap, curve.style()))?
                }
            };
            chart.draw_series(
                points
                    .into_iter()
                    .map(|point| Circle::new(point, curve.dot, curve.color.filled())),
            )?;
        }
        Ok(())
    }
}

/// A single waiter has nobody to hand over to and nothing to wait for.
fn contended(lines: &[Line]) -> impl Iterator<Item = &Line> {
    lines.iter().filter(|line| line.load.waiters > 1)
}

/// The curve of one strategy, from left to right. A logarithmic scale cannot show a zero.
fn points(lines: &[Line], strategy: Strategy, value: Value) -> Vec<(f64, f64)> {
    let of_it = contended(lines).filter(|line| line.strategy == strategy);
    let mut points: Vec<(f64, f64)> = of_it
        .filter_map(|line| Some((f64::from(line.load.waiters), value(line)?)))
        .filter(|p| p.1 > 0.0)
        .collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points
}

/// How a strategy is drawn: each library has a colour, and each of its settings has a line style.
struct Curve {
    strategy: Strategy,
    color: RGBColor,
    width: u32,
    dot: i32,
    dashes: Option<(i32, i32)>,
}

impl Curve {
    fn of(strategy: Strategy, all: &[Strategy]) -> Curve {
        let library = |strategy: &Strategy| strategy.name().split('-').next().unwrap_or_default();
        let mut libraries: Vec<&str> = Vec::new();
        for other in all.iter().map(library) {
            if !libraries.contains(&other) {
                libraries.push(other);
            }
        }
        let same = all.iter().filter(|other| library(other) == library(&strategy));
        let setting = same.take_while(|other| **other != strategy).count();
        let place = libraries
            .iter()
            .position(|other| *other == library(&strategy))
            .unwrap_or(0);
        let ours = strategy == Strategy::Fairlock;
        Curve {
            strategy,
            color: match strategy {
                Strategy::Fairlock => RGBColor(0, 0, 0),
                _ => COLORS[place % COLORS.len()],
            },
            width: if ours { 4 } else { 2 },
            dot: if ours { 5 } else { 3 },
            dashes: [None, Some((8, 5)), Some((2, 4)), Some((14, 5))][setting % 4],
        }
    }

    fn style(&self) -> ShapeStyle {
        self.color.stroke_width(self.width)
    }

    /// The sample in the legend.
    fn draw<'a>(&self, area: &Area<'a>, [from, to]: &[(i32, i32); 2]) -> Drawn<'a> {
        let (dash, gap) = self.dashes.unwrap_or((40, 0));
        let mut x = from.0;
        while x < to.0 {
            let end = (x + dash).min(to.0);
            area.draw(&PathElement::new([(x, from.1), (end, to.1)], self.style()))?;
            x = end + gap.max(1);
        }
        Ok(())
    }
}

/// Colours that differ as clearly as possible for this number.
const COLORS: [RGBColor; 13] = [
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(0, 114, 178),
    RGBColor(86, 180, 233),
    RGBColor(120, 94, 240),
    RGBColor(154, 99, 36),
    RGBColor(128, 128, 0),
    RGBColor(128, 0, 0),
    RGBColor(0, 128, 128),
    RGBColor(160, 160, 160),
    RGBColor(240, 50, 230),
];

/// The smallest and the largest value, or a range that can be drawn if there is no value.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let widen = |(low, high): (f64, f64), v: f64| (low.min(v), high.max(v));
    let range = values.fold((f64::INFINITY, 0.0), widen);
    if range.0.is_finite() { range } else { (1.0, 10.0) }
}

/// Bounds at powers of ten, so that the scale always has labels.
fn power(exponent: f64) -> f64 {
    10f64.powf(exponent)
}

fn plain(value: f64) -> String {
    match value {
        v if v >= 1.0 => format!("{v:.0}"),
        v if v >= 0.1 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}
