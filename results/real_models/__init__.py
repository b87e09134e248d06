"""Published modules at their real size, imported and decided on."""
