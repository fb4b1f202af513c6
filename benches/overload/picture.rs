//! The picture: what is acquired per second, over patience.

use std::path::Path;

use fairlock_benches::Outcome;
use plotters::prelude::*;

use crate::part::Strategy;

/// One measured value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    pub(crate) strategy: Strategy,
    pub(crate) patience_ms: u64,
    pub(crate) rate: f64,
}

pub(crate) fn draw(path: &Path, points: &[Point]) -> Outcome<()> {
    all(path, points).map_err(|e| format!("the picture could not be drawn: {e}").into())
}

fn all(path: &Path, points: &[Point]) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::new(path, (720, 420)).into_drawing_area();
    root.fill(&WHITE)?;
    let patience = |point: &Point| point.patience_ms as f64;
    let least = points.iter().map(patience).fold(f64::INFINITY, f64::min);
    let most = points.iter().map(patience).fold(0.0, f64::max);
    let highest = points.iter().map(|point| point.rate).fold(0.0, f64::max);
    let mut chart = ChartBuilder::on(&root)
        .caption("Acquired per second", ("sans-serif", 16))
        .margin(14)
        .x_label_area_size(40)
        .y_label_area_size(64)
        .build_cartesian_2d((least..most).log_scale(), 0.0..1.1 * highest)?;
    chart
        .configure_mesh()
        .x_desc("patience in milliseconds")
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| format!("{y:.0}"))
        .draw()?;
    for (strategy, color) in [
        (Strategy::Fairlock, BLUE),
        (Strategy::Dropped, GREEN),
        (Strategy::Spin, RED),
    ] {
        let of_it = points.iter().filter(|point| point.strategy == strategy);
        let places: Vec<_> = of_it.map(|point| (patience(point), point.rate)).collect();
        if places.is_empty() {
            continue;
        }
        chart
            .draw_series(LineSeries::new(places.clone(), color.stroke_width(2)))?
            .label(strategy.name())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color.stroke_width(2)));
        chart.draw_series(
            places
                .into_iter()
                .map(|place| Circle::new(place, 3, color.filled())),
        )?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .border_style(BLACK)
        .background_style(WHITE)
        .draw()?;
    root.present()?;
    Ok(())
}
