//! The picture: throughput, and the waits of the unluckiest hundredth, over the number of waiters.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::series::DashedLineSeries;

use crate::Outcome;
use crate::analysis::quantile;
use crate::report::Line;
use crate::strategy::Strategy;

const WIDTH: u32 = 1100;
const HEIGHT: u32 = 500;
const LEGEND_HEIGHT: u32 = 36;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn<'a> = Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;
type Value = fn(&Line) -> Option<f64>;

/// What is drawn over the number of waiters.
struct Panel {
    title: &'static str,
    unit: &'static str,
    solid: Value,
    dashed: Option<Value>,
}

const PANELS: [Panel; 2] = [
    Panel {
        title: "Hand-offs to another waiter (dashed: all acquisitions)",
        unit: "per second",
        solid: |line| Some(line.findings.handoffs_per_s()),
        dashed: Some(|line| Some(line.findings.acquisitions_per_s())),
    },
    Panel {
        title: "Wait of the unluckiest 1 % (p99)",
        unit: "milliseconds",
        solid: |line| quantile(&line.findings.waits_ns, 990).map(|ns| ns as f64 / 1e6),
        dashed: None,
    },
];

/// Draws the lines of the table as an SVG.
pub(crate) fn draw(path: &Path, lines: &[Line]) -> Outcome<()> {
    let mut strategies: Vec<Strategy> = Vec::new();
    for line in lines {
        if !strategies.contains(&line.strategy) {
            strategies.push(line.strategy);
        }
    }
    let root = SVGBackend::new(path, (WIDTH, HEIGHT)).into_drawing_area();
    all(&root, &strategies, lines).map_err(|e| format!("the picture could not be drawn: {e}").into())
}

fn all<'a>(root: &Area<'a>, strategies: &[Strategy], lines: &[Line]) -> Drawn<'a> {
    root.fill(&WHITE)?;
    let (top, rest) = root.split_vertically(LEGEND_HEIGHT);
    for (strategy, x) in strategies.iter().zip((80..).step_by(130)) {
        let y = 22;
        top.draw(&PathElement::new(
            [(x, y), (x + 26, y)],
            color(*strategy).stroke_width(3),
        ))?;
        top.draw(&Text::new(strategy.name(), (x + 34, y - 8), ("sans-serif", 16)))?;
    }
    let (left, right) = rest.split_horizontally(WIDTH / 2);
    for (area, panel) in [left, right].iter().zip(&PANELS) {
        panel.draw(area, strategies, lines)?;
    }
    root.present()
}

impl Panel {
    fn draw<'a>(&self, area: &Area<'a>, strategies: &[Strategy], lines: &[Line]) -> Drawn<'a> {
        let values = [Some(self.solid), self.dashed];
        let seen = lines
            .iter()
            .flat_map(|line| values.iter().flatten().filter_map(|value| value(line)));
        let (min_y, max_y) = range(seen.filter(|y| *y > 0.0));
        let (min_x, max_x) = range(lines.iter().map(|line| f64::from(line.waiters)));

        let mut chart = ChartBuilder::on(area)
            .caption(self.title, ("sans-serif", 17))
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
        for &strategy in strategies {
            let color = color(strategy);
            if let Some(dashed) = self.dashed {
                let points = points(lines, strategy, dashed);
                chart.draw_series(DashedLineSeries::new(
                    points,
                    5,
                    4,
                    color.mix(0.7).stroke_width(1),
                ))?;
            }
            let points = points(lines, strategy, self.solid);
            chart.draw_series(LineSeries::new(points.clone(), color.stroke_width(2)))?;
            chart.draw_series(
                points
                    .into_iter()
                    .map(|point| Circle::new(point, 4, color.filled())),
            )?;
        }
        Ok(())
    }
}

/// The curve of one strategy, from left to right. A scale of powers has no place for a zero.
fn points(lines: &[Line], strategy: Strategy, value: Value) -> Vec<(f64, f64)> {
    let of_it = lines.iter().filter(|line| line.strategy == strategy);
    let mut points: Vec<(f64, f64)> = of_it
        .filter_map(|line| Some((f64::from(line.waiters), value(line)?)))
        .filter(|p| p.1 > 0.0)
        .collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points
}

/// Colours that stay apart for the colour-blind too.
fn color(strategy: Strategy) -> RGBColor {
    match strategy {
        Strategy::Fairlock => RGBColor(0, 114, 178),
        Strategy::Publish => RGBColor(230, 159, 0),
        Strategy::Spin => RGBColor(204, 121, 167),
    }
}

/// The smallest and the largest, or something that can be drawn if there is nothing.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let widen = |(low, high): (f64, f64), v: f64| (low.min(v), high.max(v));
    let range = values.fold((f64::INFINITY, 0.0), widen);
    if range.0.is_finite() { range } else { (1.0, 10.0) }
}

/// A scale from one power of ten to another always has something to label.
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
