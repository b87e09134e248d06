"""Speed-up of AlexNet and VGG-16 over one GPU, by batch (SoyBean, Figure 10)."""
