"""Hooks of the LightningModule that belong to a step: overridden, they run at every step."""

from gallery.case import Small, case

case()(Small)
